// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums in double, for squares of finite floats, which may leave the range of float.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

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
