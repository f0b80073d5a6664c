// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over a warp or a block, chosen when a kernel is compiled.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

// Over a group of G threads, a warp or a block of kThreads, in a fixed order; every thread of the group gets the sum.
template <int G>
__device__ inline float group_sum(float x) {
  static_assert(G == 32 || G == kThreads);
  if constexpr (G == 32) {
    return warp_sum(x);
  } else {
    return block_sum(x);
  }
}

}  // namespace arbalest::cuda
