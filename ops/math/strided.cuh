// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places of elements in tensors that are broadcast to one shape or lie in another order.

#include "ops/cuda/cuda_math.cuh"
#include "ops/math/strided.h"

namespace arbalest::cuda {

// Finds the offsets of element `index` of the walk in tensors 1 to N; tensor 0, which has no gaps, is left out.
// `small`: the walk has fewer than 2³¹ elements, so that divisions are by Divisor.
template <int N>
__device__ inline void find_offsets(const Strided& walk, bool small, int64_t index, int64_t (&offset)[N]) {
#pragma unroll
  for (int t = 0; t < N; ++t) offset[t] = 0;
  for (int axis = walk.rank - 1; axis > 0; --axis) {
    const int64_t extent = walk.extent[axis];
    const int64_t rest = small ? int64_t(walk.of_extent[axis].quotient(int(index))) : index / extent;
    const int64_t place = index - rest * extent;
    index = rest;
#pragma unroll
    for (int t = 0; t < N; ++t) offset[t] += place * walk.stride[t + 1][axis];
  }
#pragma unroll
  for (int t = 0; t < N; ++t) offset[t] += index * walk.stride[t + 1][0];
}

}  // namespace arbalest::cuda
