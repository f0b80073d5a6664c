// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernels of reductions over axes (reduce_table.h), for operators that have one.
//
// If there are too few outputs to fill the device, the reduced elements are cut into chunks. A first kernel combines
// the terms of each chunk, a second combines the chunks, always in the same order.

#include <type_traits>

#include "ops/cuda/cuda_math.cuh"
#include "ops/reduce/reduce_table.h"
#include "ops/reduce/sum_axes.h"

namespace arbalest::cuda {

template <typename T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, int64_t, float>;

template <typename T>
__device__ inline Accumulator<T> accumulated(T x) {
  if constexpr (std::is_integral_v<T>) {
    return int64_t(x);
  } else {
    return widen(x);
  }
}

template <typename T>
__device__ inline T rounded(Accumulator<T> a) {
  if constexpr (std::is_integral_v<T>) {
    return T(a);
  } else {
    return narrow<T>(a);
  }
}

// Over the warp's lanes that are `from`, 2 · from, 4 · from … apart, below `to`; the lowest of them get the result.
template <typename Combination, typename A>
__device__ inline A combine_lanes(A a, int from, int to) {
  for (int offset = to / 2; offset >= from; offset /= 2) {
    a = Combination::combine(a, A(__shfl_down_sync(0xffffffffu, a, offset)));
  }
  return a;
}

// How a reduction is cut.
struct ReductionCut {
  SumAxes axes;
  int64_t outputs;
  int64_t chunk = 0;  // elements of each, at most
  int chunks = 1;     // 1: no second kernel
  bool columns;       // a block takes neighbouring outputs, else a group of lanes each
  bool few = false;   // so few elements are reduced that a thread makes outputs alone
  int lanes = 32;     // of a group, or along the outputs of a block: a power of two
  int width;          // neighbours that a thread takes at once
  unsigned blocks;

  // Packs of `pack`, where the axes allow them. Outputs of integers, which are shapes or masks, are made whole by
  // groups, so that fewer kernels are needed.
  ReductionCut(const SumAxes& sums, int multiprocessors, bool integers, int pack)
      : axes(sums), outputs(sums.kept.count * sums.inner), columns(sums.inner >= 8 && !integers) {
    width = has_packs(pack) ? pack : 1;
    const int64_t count = axes.reduced.count, enough = int64_t(multiprocessors) * 8;
    const int64_t packs = ((columns ? axes.inner : count) + width - 1) / width;
    const bool many = axes.kept.count * packs >= int64_t(multiprocessors) * kThreads / 2;  // threads
    few = columns ? count <= (many ? 32 : 8) : !integers && width == 1 && count <= 8;
    if (few) {
      chunk = count;
      blocks = blocks_for(columns ? axes.kept.count * packs : outputs, multiprocessors);
      return;
    }
    while (lanes > 1 && lanes / 2 >= packs) lanes /= 2;
    const int64_t tiles = axes.kept.count * ((packs + lanes - 1) / lanes);
    const int64_t needed = columns ? tiles : (outputs * lanes + kThreads - 1) / kThreads;
    blocks = unsigned(std::clamp<int64_t>(needed, 1, enough * 4));
    const int64_t least = columns ? 4 * kThreads / lanes : 1024;  // elements that are worth a second kernel
    const int64_t most = std::clamp<int64_t>(count / least, 1, 1024);
    if (!integers) chunks = int(std::clamp<int64_t>(enough / int64_t(blocks), 1, most));
    chunk = (count + chunks - 1) / chunks;
    if (!columns) chunk = (chunk + width - 1) / width * width;
  }

 private:
  bool has_packs(int pack) const {
    const AxisList &kept = axes.kept, &reduced = axes.reduced;
    const int last = reduced.rank - 1;
    if (!columns && (axes.inner != 1 || last < 0 || reduced.stride[0][last] != 1)) return false;
    bool even = (columns ? axes.inner : reduced.extent[last]) % pack == 0;
    for (int axis = 0; axis < kept.rank; ++axis) even = even && kept.stride[0][axis] % pack == 0;
    for (int axis = 0; axis < (columns ? reduced.rank : last); ++axis) {
      even = even && reduced.stride[0][axis] % pack == 0;
    }
    return even;
  }
};

// The result of no terms, and where the results of chunks go, (chunks, outputs); nullptr: results are written.
template <typename A>
struct Ends {
  A empty;
  A* partial;
};

template <typename Reduction, typename U>
__device__ inline Accumulator<U> centre_at(const U* centre, int64_t at) {
  if constexpr (Reduction::kCentred) {
    return Reduction::centre(accumulated(centre[at]));
  } else {
    return 0;
  }
}

template <typename Reduction, typename U, typename A = Accumulator<U>>
__device__ inline void finish(const ReductionCut& cut, const Ends<A>& ends, int64_t output, int64_t at, A a, A c,
                              U* y) {
  if (ends.partial) {
    ends.partial[int64_t(blockIdx.y) * cut.outputs + output] = a;
  } else {
    y[at] = rounded<U>(Reduction::value(a, A(cut.axes.reduced.count), c));
  }
}

// A group of lanes an output, packs of W along what is reduced. Block (outputs, chunk).
template <typename Reduction, int W, typename T, typename U>
__global__ void __launch_bounds__(kThreads)
    reduce_rows_kernel(ReductionCut cut, Ends<Accumulator<U>> ends, const T* x, const U* centre, U* y) {
  wait_for_dependencies();
  using A = Accumulator<U>;
  using Combination = typename Reduction::Combination;
  const SumAxes& axes = cut.axes;
  const int lane = int(threadIdx.x) % cut.lanes, groups = 32 / cut.lanes;
  const int64_t begin = int64_t(blockIdx.y) * cut.chunk, end = min(begin + cut.chunk, axes.reduced.count);
  // All lanes of a warp take part in the shuffles, whether their group has an output or not.
  for (int64_t first = thread_index() / 32 * groups; first < cut.outputs; first += thread_count() / 32 * groups) {
    const int64_t i = first + int(threadIdx.x) % 32 / cut.lanes;
    const bool active = i < cut.outputs;
    int64_t at = 0;
    A a = ends.empty, c = 0;
    if (active) {
      const int64_t kept = i / axes.inner, inner = i % axes.inner;
      const T* from = x + axes.kept.offset(kept, 0) + inner;
      at = axes.kept.offset(kept, 1) + inner * axes.inner_stride;
      c = centre_at<Reduction>(centre, at);
#pragma unroll 4
      for (int64_t r = begin + lane * W; r < end; r += cut.lanes * W) {
        const Pack<T, W> pack = load<W>(from + axes.reduced.offset(r, 0));
#pragma unroll
        for (int w = 0; w < W; ++w) {
          a = Combination::combine(a, A(Reduction::term(A(accumulated(pack.element[w])), c)));
        }
      }
    }
    a = combine_lanes<Combination>(a, 1, cut.lanes);
    if (active && lane == 0) finish<Reduction>(cut, ends, i, at, a, c, y);
  }
}

// The innermost axis is kept: a thread takes W neighbouring outputs, and a block as many as its lanes do. Block
// (outputs, chunk).
template <typename Reduction, int W, typename T, typename U>
__global__ void __launch_bounds__(kThreads)
    reduce_columns_kernel(ReductionCut cut, Ends<Accumulator<U>> ends, const T* x, const U* centre, U* y) {
  wait_for_dependencies();
  using A = Accumulator<U>;
  using Combination = typename Reduction::Combination;
  constexpr int kWarps = kThreads / 32;
  __shared__ A partial[kWarps][32 * W];
  const SumAxes& axes = cut.axes;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int column = lane % cut.lanes * W, depth = kThreads / cut.lanes, row = int(threadIdx.x) / cut.lanes;
  const int64_t begin = int64_t(blockIdx.y) * cut.chunk, end = min(begin + cut.chunk, axes.reduced.count);
  const int64_t side = cut.lanes * W, tiles = (axes.inner + side - 1) / side;
  for (int64_t tile = blockIdx.x; tile < axes.kept.count * tiles; tile += gridDim.x) {
    const int64_t kept = tile / tiles, first = tile % tiles * side;
    const int64_t to = axes.kept.offset(kept, 1);
    A a[W], c[W];
#pragma unroll
    for (int w = 0; w < W; ++w) a[w] = ends.empty, c[w] = 0;
    if (first + column < axes.inner) {
      const T* from = x + axes.kept.offset(kept, 0) + first + column;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        c[w] = centre_at<Reduction>(centre, to + (first + column + w) * axes.inner_stride);
      }
#pragma unroll 4
      for (int64_t r = begin + row; r < end; r += depth) {
        const Pack<T, W> pack = load<W>(from + axes.reduced.offset(r, 0));
#pragma unroll
        for (int w = 0; w < W; ++w) {
          a[w] = Combination::combine(a[w], A(Reduction::term(A(accumulated(pack.element[w])), c[w])));
        }
      }
    }
#pragma unroll
    for (int w = 0; w < W; ++w) {
      a[w] = combine_lanes<Combination>(a[w], cut.lanes, 32);
      if (lane < cut.lanes) partial[warp][column + w] = a[w];
    }
    __syncthreads();
    for (int own = int(threadIdx.x); own < side && first + own < axes.inner; own += kThreads) {
      A sum = partial[0][own];
      for (int other = 1; other < kWarps; ++other) sum = Combination::combine(sum, partial[other][own]);
      const int64_t at = to + (first + own) * axes.inner_stride;
      finish<Reduction>(cut, ends, kept * axes.inner + first + own, at, sum, centre_at<Reduction>(centre, at), y);
    }
    __syncthreads();
  }
}

// The same where few elements are reduced: a thread makes W neighbouring outputs.
template <typename Reduction, int W, typename T, typename U>
__global__ void __launch_bounds__(kThreads)
    reduce_few_kernel(ReductionCut cut, Ends<Accumulator<U>> ends, const T* x, const U* centre, U* y) {
  wait_for_dependencies();
  using A = Accumulator<U>;
  const SumAxes& axes = cut.axes;
  const int64_t packs = (axes.inner + W - 1) / W;
  for (int64_t i = thread_index(); i < axes.kept.count * packs; i += thread_count()) {
    const int64_t kept = i / packs, first = i % packs * W;
    const T* from = x + axes.kept.offset(kept, 0) + first;
    const int64_t to = axes.kept.offset(kept, 1) + first * axes.inner_stride;
    A a[W], c[W];
#pragma unroll
    for (int w = 0; w < W; ++w) a[w] = ends.empty, c[w] = centre_at<Reduction>(centre, to + w * axes.inner_stride);
#pragma unroll 4
    for (int64_t r = 0; r < axes.reduced.count; ++r) {
      const Pack<T, W> pack = load<W>(from + axes.reduced.offset(r, 0));
#pragma unroll
      for (int w = 0; w < W; ++w) {
        a[w] = Reduction::Combination::combine(a[w], A(Reduction::term(A(accumulated(pack.element[w])), c[w])));
      }
    }
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int64_t output = kept * axes.inner + first + w;
      finish<Reduction>(cut, ends, output, to + w * axes.inner_stride, a[w], c[w], y);
    }
  }
}

// Combines the results of the chunks; one warp makes an output.
template <typename Reduction, typename U>
__global__ void __launch_bounds__(kThreads)
    combine_chunks_kernel(ReductionCut cut, Ends<Accumulator<U>> ends, const U* centre, U* y) {
  wait_for_dependencies();
  using A = Accumulator<U>;
  using Combination = typename Reduction::Combination;
  const SumAxes& axes = cut.axes;
  const int lane = int(threadIdx.x) % 32;
  for (int64_t i = thread_index() / 32; i < cut.outputs; i += thread_count() / 32) {
    A a = ends.empty;
    for (int chunk = lane; chunk < cut.chunks; chunk += 32) {
      a = Combination::combine(a, ends.partial[chunk * cut.outputs + i]);
    }
    a = combine_lanes<Combination>(a, 1, 32);
    const int64_t at = axes.kept.offset(i / axes.inner, 1) + i % axes.inner * axes.inner_stride;
    const A c = centre_at<Reduction>(centre, at);
    if (lane == 0) y[at] = rounded<U>(Reduction::value(a, A(axes.reduced.count), c));
  }
}

// A reduction of elements of type T to outputs of type U, cut for packs and for tensors that are not aligned.
template <typename Reduction, typename T, typename U = T>
class ReductionLaunch {
  using A = Accumulator<U>;
  static constexpr int kWide = std::is_integral_v<T> ? 1 : int(16 / sizeof(T));

 public:
  ReductionLaunch(const SumAxes& axes, int multiprocessors)
      : wide_(axes, multiprocessors, std::is_integral_v<T>, kWide),
        narrow_(axes, multiprocessors, std::is_integral_v<T>, 1),
        multiprocessors_(multiprocessors) {}

  int64_t workspace_bytes() const { return std::max(bytes_of(wide_), bytes_of(narrow_)); }

  // `centre`: the greatest of the terms of each output, where the reduction asks for them.
  void run(const KernelContext& c, const T* x, const U* centre, U* y) const {
    if (wide_.outputs == 0) return;
    if (wide_.width == kWide && aligned(x)) {
      run<kWide>(c, wide_, x, centre, y);
    } else {
      run<1>(c, narrow_, x, centre, y);
    }
  }

 private:
  static int64_t bytes_of(const ReductionCut& cut) {
    return cut.chunks > 1 ? cut.chunks * cut.outputs * int64_t(sizeof(A)) : 0;
  }

  template <int W>
  void run(const KernelContext& c, const ReductionCut& cut, const T* x, const U* centre, U* y) const {
    const Ends<A> ends{Reduction::Combination::template empty<T, A>(),
                       cut.chunks > 1 ? static_cast<A*>(c.workspace) : nullptr};
    const dim3 grid(cut.blocks, unsigned(cut.chunks));
    bool columns = false;
    if constexpr (!std::is_integral_v<T>) {
      columns = cut.columns;
      if (cut.few) {
        launch_dependent(reduce_few_kernel<Reduction, W, T, U>, grid, kThreads, 0, stream_of(c), cut, ends, x, centre,
                         y);
      } else if (columns) {
        launch_dependent(reduce_columns_kernel<Reduction, W, T, U>, grid, kThreads, 0, stream_of(c), cut, ends, x,
                         centre, y);
      }
    }
    if (!columns && !cut.few) {
      launch_dependent(reduce_rows_kernel<Reduction, W, T, U>, grid, kThreads, 0, stream_of(c), cut, ends, x, centre,
                       y);
    }
    check_launch("reduction");
    if (cut.chunks == 1) return;
    launch_dependent(combine_chunks_kernel<Reduction, U>, blocks_for(cut.outputs * 32, multiprocessors_), kThreads, 0,
                     stream_of(c), cut, ends, centre, y);
    check_launch("reduction of chunks");
  }

  ReductionCut wide_, narrow_;
  int multiprocessors_;
};

}  // namespace arbalest::cuda
