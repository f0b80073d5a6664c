// SPDX-License-Identifier: Apache-2.0
#pragma once
// out[i] = function(in[i]...) for inputs that are broadcast to the output's shape or lie in another order.

#include <utility>

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

// A thread takes W neighbours of the innermost axis: a pack of a tensor, or one element if its stride there is 0.
template <int W, typename T, typename Function, typename... In>
__global__ void __launch_bounds__(kThreads)
    strided_kernel(int64_t count, Strided walk, bool small, Function function, T* out, const In*... in) {
  wait_for_dependencies();
  constexpr int N = int(sizeof...(In));
  for (int64_t i = thread_index() * W; i < count; i += thread_count() * W) {
    int64_t offset[N];
    find_offsets<N>(walk, small, i, offset);
    const auto fetch = [&](size_t t, const T* from) {
      if (W > 1 && walk.stride[t + 1][walk.rank - 1] == 1) return load<W>(from + offset[t]);
      const T element = from[offset[t]];
      Pack<T, W> pack;
#pragma unroll
      for (int w = 0; w < W; ++w) pack.element[w] = element;
      return pack;
    };
    const auto apply = [&](const Pack<In, W>&... pack) {
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(function(widen(pack.element[w])...));
      store(out + i, result);
    };
    [&]<size_t... I>(std::index_sequence<I...>) {
      apply(fetch(I, in)...);
    }
    (std::index_sequence_for<In...>());
  }
}

// Whether packs of `width` serve every tensor of the walk: its stride along the innermost axis is 1, and then all
// others are multiples of `width`, or 0.
inline bool packs_fit(const Strided& walk, size_t tensors, int width) {
  if (walk.inner() % width != 0) return false;
  for (size_t t = 0; t < tensors; ++t) {
    const int64_t inner = walk.inner_stride(t);
    if (inner != 0 && inner != 1) return false;
    for (int axis = 0; axis + 1 < walk.rank && inner == 1; ++axis) {
      if (walk.stride[t][axis] % width != 0) return false;
    }
  }
  return true;
}

// Tensor 0 of the walk is `out`; the inputs follow. If all lie in one order, the elementwise kernel runs instead.
template <typename T, typename Function, typename... In>
void launch_strided(cudaStream_t stream, int multiprocessors, int64_t count, const Strided& walk, Function function,
                    T* out, const In*... in) {
  constexpr size_t tensors = sizeof...(In) + 1;
  constexpr int W = int(16 / sizeof(T));
  if (count == 0) return;
  if (walk.contiguous(tensors)) {
    launch_elementwise("elementwise", stream, multiprocessors, count, function, out, in...);
    return;
  }
  const bool small = count < (int64_t{1} << 31);
  if (packs_fit(walk, tensors, W) && aligned(out) && (aligned(in) && ...)) {
    launch_dependent(strided_kernel<W, T, Function, In...>, blocks_for(count / W, multiprocessors), kThreads, 0, stream,
                     count, walk, small, function, out, in...);
  } else {
    launch_dependent(strided_kernel<1, T, Function, In...>, blocks_for(count, multiprocessors), kThreads, 0, stream,
                     count, walk, small, function, out, in...);
  }
  check_launch("elementwise");
}

}  // namespace arbalest::cuda
