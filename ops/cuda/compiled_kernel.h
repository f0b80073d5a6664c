// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernels that are compiled while a plan is made, by NVRTC, and kept for later processes.

#include <cuda_runtime.h>

#include <memory>
#include <string>

namespace arbalest {

// A function of a module that was compiled for the device in use.
class CompiledKernel {
 public:
  // Compiles `source` for the device in use, unless cache_folder() has what an earlier process compiled of it.
  // `rough`: quotients and roots within two units of the last place. Throws RunError with the compiler's words.
  CompiledKernel(const std::string& source, const char* function, bool rough = false);
  ~CompiledKernel();
  CompiledKernel(const CompiledKernel&) = delete;
  CompiledKernel& operator=(const CompiledKernel&) = delete;

  // `arguments`: pointers to the values of the parameters, in their order. An early launch
  // (ops/cuda/dependent_launch.cuh) wherever the device has it: the kernel waits by itself. Throws RunError.
  void launch(unsigned blocks, unsigned threads, cudaStream_t stream, void** arguments) const;

 private:
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
  bool early_ = false;
};

// The code of `source` for an architecture, as "sm_90". Throws RunError with the compiler's words.
std::string compile_cuda(const std::string& source, const std::string& architecture, bool rough = false);

}  // namespace arbalest
