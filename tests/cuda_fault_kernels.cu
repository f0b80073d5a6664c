// SPDX-License-Identifier: Apache-2.0

// Kernels that a GPU cannot end, for cuda_fault.cpp.

#include <cuda_runtime.h>

namespace {

__global__ void write_nowhere_kernel() {
  *reinterpret_cast<volatile int*>(64) = 1;
}

__global__ void never_end_kernel() {
  for (volatile int i = 0;; i = i + 1) {
  }
}

}  // namespace

void write_nowhere(cudaStream_t stream) {
  write_nowhere_kernel<<<1, 1, 0, stream>>>();
}

void never_end(cudaStream_t stream) {
  never_end_kernel<<<1, 1, 0, stream>>>();
}
