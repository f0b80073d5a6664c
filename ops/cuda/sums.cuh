// SPDX-License-Identifier: Apache-2.0
#pragma once
// More sums over a warp or a block: of groups whose size is known when a kernel is compiled, and in double, for squares
// of finite floats, which may leave the range of float.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

// Over a group of G threads, a warp's part, a warp or a block of kThreads, in a fixed order; every thread of the group
// gets the sum. All threads of a warp call it together.
template <int G>
__device__ inline float group_sum(float x) {
  static_assert(G == kThreads || (G <= 32 && 32 % G == 0));
  if constexpr (G == kThreads) {
    return block_sum(x);
  } else {
#pragma unroll
    for (int offset = G / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
  }
}

// Sums over a warp in a fixed order; every lane gets the result.
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Sums over a block of up to 1024 threads (a multiple of 32) in a fixed order; every thread gets the result.
__device__ inline double block_sum(double x) {
  __shared__ double sums[32];
  x = warp_sum(x);
  __syncthreads();  // an earlier call's readers are done
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  double total = 0;
  for (int warp = 0; warp < int(blockDim.x) / 32; ++warp) total += sums[warp];
  return total;
}

}  // namespace arbalest::cuda
