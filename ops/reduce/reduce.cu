// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of reductions over axes, and of their gradients.
//
// If there are too few outputs to fill the device, the reduced elements are cut into chunks. A first kernel combines
// the terms of each chunk, a second combines the chunks, always in the same order.

#include "ops/math/strided.cuh"
#include "ops/reduce/reduce.h"
#include "ops/reduce/reduce_table.h"
#include "ops/reduce/sum_axes.h"

namespace arbalest {

using namespace cuda;

namespace {

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

// Over a warp; the first lane gets the result.
template <typename Combination, typename A>
__device__ inline A combine_warp(A a) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    a = Combination::combine(a, A(__shfl_down_sync(0xffffffffu, a, offset)));
  }
  return a;
}

// How a reduction is cut.
struct Work {
  SumAxes axes;
  int64_t outputs;
  int64_t chunk;  // elements of each, at most
  int chunks;     // 1: no second kernel
};

template <typename A>
struct Ends {
  A empty;        // what no terms combine to
  void* partial;  // (chunks, outputs) of A; nullptr: results are written
};

template <typename Reduction, typename T>
__device__ inline Accumulator<T> centre_at(const T* centre, int64_t at) {
  if constexpr (Reduction::kCentred) {
    return Reduction::centre(accumulated(centre[at]));
  } else {
    return 0;
  }
}

template <typename Reduction, typename T, typename A = Accumulator<T>>
__device__ inline void finish(const Work& work, const Ends<A>& ends, int64_t output, int64_t at, A a, A c, T* y) {
  if (ends.partial) {
    static_cast<A*>(ends.partial)[int64_t(blockIdx.y) * work.outputs + output] = a;
  } else {
    y[at] = rounded<T>(Reduction::value(a, A(work.axes.reduced.count), c));
  }
}

// A warp an output. Block (outputs, chunk).
template <typename Reduction, typename T>
__global__ void __launch_bounds__(kThreads)
    reduce_vectors_kernel(Work work, Ends<Accumulator<T>> ends, const T* x, const T* centre, T* y) {
  using A = Accumulator<T>;
  using Combination = typename Reduction::Combination;
  const SumAxes& axes = work.axes;
  const int lane = int(threadIdx.x) % 32;
  const int64_t begin = int64_t(blockIdx.y) * work.chunk, end = min(begin + work.chunk, axes.reduced.count);
  for (int64_t i = thread_index() / 32; i < work.outputs; i += thread_count() / 32) {
    const int64_t kept = i / axes.inner, inner = i % axes.inner;
    const T* from = x + axes.kept.offset(kept, 0) + inner;
    const int64_t at = axes.kept.offset(kept, 1) + inner * axes.inner_stride;
    const A c = centre_at<Reduction>(centre, at);
    A a = ends.empty;
#pragma unroll 4
    for (int64_t r = begin + lane; r < end; r += 32) {
      a = Combination::combine(a, Reduction::term(accumulated(from[axes.reduced.offset(r, 0)]), c));
    }
    a = combine_warp<Combination>(a);
    if (lane == 0) finish<Reduction>(work, ends, i, at, a, c, y);
  }
}

// The innermost axis is kept: a block of 32 × 8 threads takes 32 neighbouring outputs. Block (outputs, chunk).
template <typename Reduction, typename T>
__global__ void __launch_bounds__(kThreads)
    reduce_columns_kernel(Work work, Ends<Accumulator<T>> ends, const T* x, const T* centre, T* y) {
  using A = Accumulator<T>;
  using Combination = typename Reduction::Combination;
  constexpr int kDepth = kThreads / 32;
  __shared__ A partial[kDepth][32];
  const SumAxes& axes = work.axes;
  const int column = int(threadIdx.x) % 32, row = int(threadIdx.x) / 32;
  const int64_t begin = int64_t(blockIdx.y) * work.chunk, end = min(begin + work.chunk, axes.reduced.count);
  const int64_t tiles = (axes.inner + 31) / 32;
  for (int64_t tile = blockIdx.x; tile < axes.kept.count * tiles; tile += gridDim.x) {
    const int64_t kept = tile / tiles, inner = tile % tiles * 32 + column;
    const int64_t at = axes.kept.offset(kept, 1) + inner * axes.inner_stride;
    const bool active = inner < axes.inner;
    A a = ends.empty, c = 0;
    if (active) {
      const T* from = x + axes.kept.offset(kept, 0) + inner;
      c = centre_at<Reduction>(centre, at);
#pragma unroll 4
      for (int64_t r = begin + row; r < end; r += kDepth) {
        a = Combination::combine(a, Reduction::term(accumulated(from[axes.reduced.offset(r, 0)]), c));
      }
    }
    partial[row][column] = a;
    __syncthreads();
    if (row == 0 && active) {
      for (int other = 1; other < kDepth; ++other) a = Combination::combine(a, partial[other][column]);
      finish<Reduction>(work, ends, kept * axes.inner + inner, at, a, c, y);
    }
    __syncthreads();
  }
}

// Combines the results of the chunks; one warp makes an output.
template <typename Reduction, typename T>
__global__ void __launch_bounds__(kThreads)
    combine_chunks_kernel(Work work, Accumulator<T> empty, const Accumulator<T>* partial, const T* centre, T* y) {
  using A = Accumulator<T>;
  using Combination = typename Reduction::Combination;
  const SumAxes& axes = work.axes;
  const int lane = int(threadIdx.x) % 32;
  for (int64_t i = thread_index() / 32; i < work.outputs; i += thread_count() / 32) {
    A a = empty;
    for (int chunk = lane; chunk < work.chunks; chunk += 32) {
      a = Combination::combine(a, partial[chunk * work.outputs + i]);
    }
    a = combine_warp<Combination>(a);
    const int64_t at = axes.kept.offset(i / axes.inner, 1) + i % axes.inner * axes.inner_stride;
    const A c = centre_at<Reduction>(centre, at);
    if (lane == 0) y[at] = rounded<T>(Reduction::value(a, A(axes.reduced.count), c));
  }
}

struct Cut : Work {
  bool columns;  // a block takes 32 neighbouring outputs, else each of its warps one
  unsigned blocks;
  int multiprocessors;

  // Outputs of integers, which are shapes or masks, are made whole by warps, so that fewer kernels are needed.
  Cut(const SumAxes& sums, int processors, bool integers)
      : Work{sums, sums.kept.count * sums.inner, 0, 1}, multiprocessors(processors) {
    const int64_t count = axes.reduced.count, enough = int64_t(multiprocessors) * 8;
    columns = axes.inner >= 8 && !integers;
    const int64_t tiles = axes.kept.count * ((axes.inner + 31) / 32);
    const int64_t needed = columns ? tiles : (outputs * 32 + kThreads - 1) / kThreads;
    blocks = unsigned(std::clamp<int64_t>(needed, 1, enough * 4));
    const int64_t least = columns ? 128 : 1024;  // elements of a chunk, so that they are worth a second kernel
    const int64_t most = std::clamp<int64_t>(count / least, 1, 1024);
    if (!integers) chunks = int(std::clamp<int64_t>(enough / int64_t(blocks), 1, most));
    chunk = (count + chunks - 1) / chunks;
  }
};

template <typename Reduction, typename T>
void launch(const KernelContext& c, const Cut& cut, const T* x, const T* centre, T* y) {
  using A = Accumulator<T>;
  if (cut.outputs == 0) return;
  const A empty = Reduction::Combination::template empty<T, A>();
  const Ends<A> ends{empty, cut.chunks > 1 ? c.workspace : nullptr};
  const Work& work = cut;
  const dim3 grid(cut.blocks, unsigned(cut.chunks));
  bool columns = false;
  if constexpr (!std::is_integral_v<T>) {
    columns = cut.columns;
    if (columns) reduce_columns_kernel<Reduction><<<grid, kThreads, 0, stream_of(c)>>>(work, ends, x, centre, y);
  }
  if (!columns) reduce_vectors_kernel<Reduction><<<grid, kThreads, 0, stream_of(c)>>>(work, ends, x, centre, y);
  check_launch("reduction");
  if (cut.chunks == 1) return;
  combine_chunks_kernel<Reduction><<<blocks_for(cut.outputs * 32, cut.multiprocessors), kThreads, 0, stream_of(c)>>>(
      work, empty, static_cast<const A*>(c.workspace), centre, y);
  check_launch("reduction of chunks");
}

template <typename Reduction, typename T>
std::unique_ptr<Kernel> make_reduction(const Cut& cut) {
  const int64_t workspace = cut.chunks > 1 ? cut.chunks * cut.outputs * int64_t(sizeof(Accumulator<T>)) : 0;
  return make_kernel(
      [cut](const KernelContext& c) {
        const T* x = input<T>(c, 0);
        T* y = output<T>(c, 0);
        if constexpr (std::is_same_v<Reduction, reductions::ReduceTies>) {
          launch<Reduction, T>(c, cut, x, input<T>(c, 1), y);
        } else {
          if constexpr (Reduction::kCentred) launch<reductions::ReduceMax, T>(c, cut, x, nullptr, y);
          launch<Reduction, T>(c, cut, x, y, y);
        }
      },
      workspace);
}

template <typename Reduction>
std::unique_ptr<Kernel> reduction(const KernelRequest& request) {
  using reductions::Integers;
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const SumAxes axes(reducing_walk(ReducedAxes(request.node, x.shape.size()), x, y));
  const int multiprocessors = cuda_context(request).multiprocessors;
  const Cut cut(axes, multiprocessors, !is_floating(x.dtype));
  if constexpr (Reduction::kIntegers != Integers::None) {
    if (x.dtype == DataType::Int32) return make_reduction<Reduction, int32_t>(cut);
    if (x.dtype == DataType::Int64) return make_reduction<Reduction, int64_t>(cut);
  }
  if constexpr (Reduction::kIntegers == Integers::All) {
    if (x.dtype == DataType::Uint8 || x.dtype == DataType::Bool) return make_reduction<Reduction, uint8_t>(cut);
  }
  return with_type(request, x.dtype, [&](auto element) { return make_reduction<Reduction, decltype(element)>(cut); });
}

template <typename Gradient>
std::unique_ptr<Kernel> gradient(const KernelRequest& request) {
  const TensorType& dx = request.outputs[0];
  const Strided walk = reducing_gradient_walk(request);
  const int64_t count = dx.elements();
  const Gradient f{{.alpha = double(ReducedAxes(request.node, dx.shape.size()).count(dx.shape))}};
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      const auto launch = [&](const auto*... in) {
        constexpr int W = 16 / int(sizeof(T));
        if (count == 0) return;
        T* out = output<T>(c, 0);
        const bool small = count < (int64_t{1} << 31);
        if (packs_fit(walk, 1 + sizeof...(in), W) && aligned(out) && (aligned(in) && ...)) {
          strided_kernel<W><<<blocks_for(count / W, multiprocessors), kThreads, 0, stream_of(c)>>>(count, walk, small,
                                                                                                   f, out, in...);
        } else {
          strided_kernel<1>
              <<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(count, walk, small, f, out, in...);
        }
        check_launch("gradient of a reduction");
      };
      if constexpr (Gradient::kFirst && Gradient::kSecond) {
        launch(input<T>(c, 0), input<T>(c, 1), input<T>(c, 2));
      } else if constexpr (Gradient::kFirst || Gradient::kSecond) {
        launch(input<T>(c, 0), input<T>(c, 1));
      } else {
        launch(input<T>(c, 0));
      }
    });
  });
}

template <typename Reduction>
void set_kernels(OpRegistry& registry, const std::string& name) {
  registry.find(name)->cuda = reduction<Reduction>;
  if constexpr (Reduction::kGradient) {
    registry.find("arbalest." + name + "Grad")->cuda = gradient<typename Reduction::Grad>;
  }
}

}  // namespace

void register_reduce_reduce_cuda(OpRegistry& registry) {
#define ARBALEST_ADD(Name, doc, combination, integers, low, high, term, value, gradient) \
  set_kernels<reductions::Name>(registry, #Name);
  ARBALEST_REDUCTIONS(ARBALEST_ADD)
#undef ARBALEST_ADD
  registry.find("arbalest.ReduceTies")->cuda = reduction<reductions::ReduceTies>;
}

}  // namespace arbalest
