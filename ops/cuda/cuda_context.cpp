#include "ops/cuda/cuda_context.h"

#include <fmt/format.h>

#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {
namespace {

std::string current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? fmt::format("cuda:{}", device) : std::string("cuda");
}

}  // namespace

void fail_cuda(cudaError_t status, const char* call) {
  throw RunError(
      fmt::format("{}: {}: {} ({})", current_device(), call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

void fail_cudnn(cudnnStatus_t status, const char* call) {
  char detail[512] = "";
  cudnnGetLastErrorString(detail, sizeof(detail));
  throw RunError(fmt::format("{}: {}: {}{}{}", current_device(), call, cudnnGetErrorString(status),
                             detail[0] != '\0' ? ": " : "", detail));
}

void fail_cublas(cublasStatus_t status, const char* call) {
  throw RunError(fmt::format("{}: {}: {} ({})", current_device(), call, cublasLtGetStatusString(status),
                             cublasLtGetStatusName(status)));
}

void require_alignment(const char* what, std::initializer_list<const void*> pointers) {
  for (const void* pointer : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) continue;
    throw RunError(
        fmt::format("{}: {}: operand at {}, which is not a multiple of 16 bytes", current_device(), what, pointer));
  }
}

DeviceBuffer::DeviceBuffer(int64_t bytes) {
  if (bytes > 0) CUDA_CHECK(cudaMalloc(&data_, size_t(bytes)));
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) cudaFree(data_);
}

CudaKernelCache::CudaKernelCache(int device_ordinal) : context(std::make_unique<CudaContext>(device_ordinal)) {}
CudaKernelCache::~CudaKernelCache() = default;

CudaContext::CudaContext(int device_ordinal, std::shared_ptr<CudaKernelCache> shared)
    : device(device_ordinal), cache(std::move(shared)) {
  try {
    CUDA_CHECK(cudaSetDevice(device));
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    multiprocessors = properties.multiProcessorCount;
    device_name = properties.name;
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDNN_CHECK(cudnnCreate(&cudnn));
    CUBLAS_CHECK(cublasLtCreate(&cublas_lt));
  } catch (...) {
    release();
    throw;
  }
}

CudaContext::~CudaContext() {
  release();
}

void CudaContext::release() noexcept {
  if (cublas_lt != nullptr) cublasLtDestroy(cublas_lt);
  if (cudnn != nullptr) cudnnDestroy(cudnn);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

CudaContext& cuda_context(const KernelRequest& request) {
  if (request.device == nullptr) {
    throw RunError(fmt::format("node '{}' ({}): a CUDA kernel needs a CudaContext, and the request has none",
                               request.node.name,
                               request.node.op != nullptr ? request.node.op->qualified_name() : "?"));
  }
  return static_cast<CudaContext&>(*request.device);
}

}  // namespace arbalest
