// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over a warp or a block, chosen when a kernel is compiled.

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

}  // namespace arbalest::cuda
