// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resources that the CUDA kernels of a device share: library handles, device facts, plans, a stream to time on while
// kernels are made.

#include <cuda_runtime.h>
#include <cudnn.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/device_model.h"
#include "base/error.h"
#include "graph/kernel.h"
#include "ops/cuda/late_functions.h"
#include "ops/cuda/plan_cache.h"

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
// Checks a launch of ours for errors; `kernel` is its name in the message.
inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

// Throws RunError unless every pointer is aligned to 16 bytes, as is promised to cuDNN and cuBLASLt.
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
class CompiledKernel;      // ops/cuda/compiled_kernel.h

// Handles of the libraries, for one thread at a time.
struct LibraryHandles {
  LibraryHandles();
  ~LibraryHandles();
  LibraryHandles(const LibraryHandles&) = delete;
  LibraryHandles& operator=(const LibraryHandles&) = delete;

  cudnnHandle_t cudnn = nullptr;
  cublasLtHandle_t cublas_lt = nullptr;
};

// Handles, as many as threads have used at the same time; they live as long as the plans made with them. Lanes have
// none of their own: each handle takes some 9 MiB of the device, and a part of the launch memory (docs/design.md).
class HandlePool {
 public:
  // Handles for as long as it lives.
  class Lease {
   public:
    explicit Lease(HandlePool& pool) : pool_(pool), handles_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(handles_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    const LibraryHandles* operator->() const { return handles_.get(); }

   private:
    HandlePool& pool_;
    std::unique_ptr<LibraryHandles> handles_;
  };

 private:
  std::unique_ptr<LibraryHandles> take();
  void give_back(std::unique_ptr<LibraryHandles> handles) noexcept;

  std::mutex mutex_;
  size_t made_ = 0;
  std::vector<std::unique_ptr<LibraryHandles>> unused_;  // with room for all that were made
};

// The model of a CUDA device. Throws RunError.
DeviceModel model_of_device(int index);

// The context of a device, for all its lanes and for programs that run there one after another. It outlives the kernels
// made with it.
struct CudaContext : DeviceContext {
  explicit CudaContext(int device_ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int device = 0;
  DeviceModel model;
  int multiprocessors = 0;        // the model's
  cudaStream_t stream = nullptr;  // non-blocking; for timing and set-up only
  HandlePool handles;
  std::mutex timing;  // held while something is timed, which others would disturb
  // Plans by problem. A null plan: no engine supports it.
  PlanCache<ConvolutionPlan> convolution_plans;
  PlanCache<FusedAttentionPlan> attention_plans;
  PlanCache<CompiledKernel> compiled;  // by source and rounding
};

// The request's context; throws RunError if it has none.
CudaContext& cuda_context(const KernelRequest& request);
// The multiprocessors that the kernel's blocks are to fill: DeviceModel::multiprocessors_for() the learners, but all of
// them where bits must not depend on the number of learners. Throws as cuda_context().
int multiprocessors_of(const KernelRequest& request);

}  // namespace arbalest
