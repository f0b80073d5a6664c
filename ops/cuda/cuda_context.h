#pragma once
// What the CUDA kernels of one lane share: library handles, device facts, a stream to time on while kernels are made.

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "graph/error.h"
#include "graph/kernel.h"

namespace arbalest {

// Each throws RunError that names the call, the device and the library's words for the error.
#define CUDA_CHECK(call) ::arbalest::check_cuda((call), #call)
#define CUDNN_CHECK(call) ::arbalest::check_cudnn((call), #call)
#define CUBLAS_CHECK(call) ::arbalest::check_cublas((call), #call)

[[noreturn]] void fail_cuda(cudaError_t status, const char* call);
[[noreturn]] void fail_cudnn(cudnnStatus_t status, const char* call);
[[noreturn]] void fail_cublas(cublasStatus_t status, const char* call);

inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail_cuda(status, call);
}
inline void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail_cudnn(status, call);
}
inline void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_cublas(status, call);
}
// After a launch of ours; `kernel` is what the error calls it.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

// Throws RunError unless every pointer is aligned to 16 bytes, as cuDNN and cuBLASLt are told they are.
void require_alignment(const char* what, std::initializer_list<const void*> pointers);

// Device memory that lives as long as its owner. For use while kernels are made, never in run().
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class ConvolutionPlan;     // ops/cuda/cudnn_graph.h
class FusedAttentionPlan;  // ops/cuda/cudnn_attention.h

// The opaque type of graph/kernel.h: what it is on CUDA.
struct DeviceContext {};

struct CudaContext;

// What making kernels finds out about a device: shared by its lanes, and by plans that follow each other.
struct CudaKernelCache {
  explicit CudaKernelCache(int device_ordinal);
  ~CudaKernelCache();

  std::mutex mutex;                      // held while plans are made and timed
  std::unique_ptr<CudaContext> context;  // that they are made with: it lives as long as they do
  // By problem. A null plan: no engine supports it.
  std::map<std::string, std::shared_ptr<const ConvolutionPlan>> convolution_plans;
  std::map<std::string, std::shared_ptr<const FusedAttentionPlan>> attention_plans;
};

// One a lane. Made and destroyed with its device current; the kernels made with it run on one thread at a time.
struct CudaContext : DeviceContext {
  explicit CudaContext(int device_ordinal, std::shared_ptr<CudaKernelCache> shared = nullptr);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int device = 0;
  int multiprocessors = 0;
  std::string device_name;
  cudaStream_t stream = nullptr;  // non-blocking; for timing and set-up only
  cudnnHandle_t cudnn = nullptr;
  cublasLtHandle_t cublas_lt = nullptr;
  std::shared_ptr<CudaKernelCache> cache;

 private:
  void release() noexcept;
};

// The request's context; throws RunError where it has none.
CudaContext& cuda_context(const KernelRequest& request);

}  // namespace arbalest
