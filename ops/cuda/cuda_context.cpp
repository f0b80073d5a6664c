// SPDX-License-Identifier: Apache-2.0
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

LibraryHandles::LibraryHandles() {
  CUDNN_CHECK(cudnnCreate(&cudnn));
  try {
    CUBLAS_CHECK(cublasLtCreate(&cublas_lt));
  } catch (...) {
    cudnnDestroy(cudnn);
    throw;
  }
}

LibraryHandles::~LibraryHandles() {
  cublasLtDestroy(cublas_lt);
  cudnnDestroy(cudnn);
}

std::unique_ptr<LibraryHandles> HandlePool::take() {
  {
    const std::scoped_lock lock(mutex_);
    if (!unused_.empty()) {
      std::unique_ptr<LibraryHandles> handles = std::move(unused_.back());
      unused_.pop_back();
      return handles;
    }
    unused_.reserve(++made_);
  }
  return std::make_unique<LibraryHandles>();
}

void HandlePool::give_back(std::unique_ptr<LibraryHandles> handles) noexcept {
  const std::scoped_lock lock(mutex_);
  unused_.push_back(std::move(handles));
}

DeviceModel model_of_device(int index) {
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  DeviceModel model{.name = properties.name,
                    .architecture = properties.major * 10 + properties.minor,
                    .multiprocessors = properties.multiProcessorCount,
                    .shared_bytes = int(properties.sharedMemPerBlockOptin)};
  add_rates(model);
  return model;
}

CudaContext::CudaContext(int device_ordinal) : device(device_ordinal) {
  CUDA_CHECK(cudaSetDevice(device));
  model = model_of_device(device);
  multiprocessors = model.multiprocessors;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
}

CudaContext::~CudaContext() {
  cudaSetDevice(device);
  cudaStreamDestroy(stream);
}

CudaContext& cuda_context(const KernelRequest& request) {
  if (request.device == nullptr) {
    throw RunError(fmt::format("node '{}' ({}): a CUDA kernel needs a CudaContext, and the request has none",
                               request.node.name,
                               request.node.op != nullptr ? request.node.op->qualified_name() : "?"));
  }
  return static_cast<CudaContext&>(*request.device);
}

int multiprocessors_of(const KernelRequest& request) {
  return cuda_context(request).model.multiprocessors_for(request.concurrent);
}

}  // namespace arbalest
