// SPDX-License-Identifier: Apache-2.0
#pragma once
// Clusters: blocks that run at the same time and read each other's shared memory, from compute capability 9.0 on.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#thread-block-clusters

#include <cuda_runtime.h>

#include <cstdint>

namespace arbalest::cuda {

// Tells the cluster that this thread has come so far. Each thread then waits before it comes to the next such place,
// and before it ends if others read its block's shared memory.
__device__ inline void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  __trap();
#endif
}
// Waits until all threads of the cluster have arrived, and reads what they had written by then.
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __trap();
#endif
}

// The value in the shared memory of block `rank` of the cluster that this block has at `own`, which is of 8 bytes.
__device__ inline float2 load_of_block([[maybe_unused]] const float2* own, [[maybe_unused]] int rank) {
  float2 value = {};
#if __CUDA_ARCH__ >= 900
  uint32_t address = uint32_t(__cvta_generic_to_shared(own));
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
#endif
  return value;
}

}  // namespace arbalest::cuda
