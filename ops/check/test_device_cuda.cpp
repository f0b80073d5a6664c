// SPDX-License-Identifier: Apache-2.0

// The harness on a CUDA device. Compiled only with CUDA.

#include <cuda_runtime.h>

#include "ops/check/test_device.h"
#include "ops/cuda/cuda_context.h"

namespace arbalest::test {
namespace {

class CudaDevice final : public TestDevice {
 public:
  CudaDevice() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~CudaDevice() override {
    if (recording_) cudaGraphExecDestroy(recording_);
    cudaStreamDestroy(stream_);
  }
  const KernelFactory& factory(const Op& op) const override { return op.cuda; }
  DeviceContext* context() override { return &context_; }
  void* stream() override { return stream_; }
  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    CUDA_CHECK(cudaMalloc(&memory, bytes));
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }
  void upload(void* device, const void* host, size_t bytes) override {
    CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  void download(void* host, const void* device, size_t bytes) override {
    CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  void run(const Kernel& kernel, const KernelContext& context) override {
    kernel.run(context);
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }
  bool can_record() const override { return true; }
  void record(const Kernel& kernel, const KernelContext& context) override {
    run(kernel, context);
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    kernel.run(context);
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    if (recording_) CUDA_CHECK(cudaGraphExecDestroy(recording_));
    CUDA_CHECK(cudaGraphInstantiate(&recording_, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
  }
  void replay() override {
    CUDA_CHECK(cudaGraphLaunch(recording_, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

 private:
  CudaContext context_{0};
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t recording_ = nullptr;
};

}  // namespace

std::unique_ptr<TestDevice> make_cuda_device(std::string& why_not) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    why_not = status == cudaSuccess ? "no CUDA device" : cudaGetErrorString(status);
    return nullptr;
  }
  return std::make_unique<CudaDevice>();
}

}  // namespace arbalest::test
