// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.SumTo.

#include <limits>

#include "ops/math/column_sum.cuh"
#include "ops/reduce/sum_axes.h"

namespace arbalest {

using namespace cuda;

namespace {

// Sums of any axes: a group of G threads, a warp or a block, takes an output; in a fixed order.
template <int G, typename T>
__global__ void __launch_bounds__(kThreads) sum_axes_kernel(SumAxes axes, const T* x, float* sums) {
  static_assert(G == 32 || G == kThreads);
  const int64_t outputs = axes.kept.count * axes.inner;
  const int lane = int(threadIdx.x) % G;
  for (int64_t i = thread_index() / G; i < outputs; i += thread_count() / G) {
    const int64_t kept = i / axes.inner, inner = i % axes.inner;
    const T* from = x + axes.kept.offset(kept, 0) + inner;
    float sum = 0;
    for (int64_t r = lane; r < axes.reduced.count; r += G) sum += widen(from[axes.reduced.offset(r, 0)]);
    sum = G == 32 ? warp_sum(sum) : block_sum(sum);
    if (lane == 0) sums[axes.kept.offset(kept, 1) + inner * axes.inner_stride] = sum;
  }
}

// The same where outputs are fewer than a device's blocks: block.x is an output, and block.y a share of its elements.
// partials: (shares, outputs). Packs of W are along the innermost axis.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) sum_shares_kernel(SumAxes axes, const T* x, float* partials) {
  const int64_t i = blockIdx.x, packs = axes.reduced.count / W, each = (packs + gridDim.y - 1) / gridDim.y;
  const int64_t first = each * blockIdx.y, last = first + each < packs ? first + each : packs;
  const T* from = x + axes.kept.offset(i / axes.inner, 0) + i % axes.inner;
  float sum = 0;
  for (int64_t pack = first + threadIdx.x; pack < last; pack += kThreads) {
    const Pack<T, W> values = load<W>(from + axes.reduced.offset(pack * W, 0));
#pragma unroll
    for (int w = 0; w < W; ++w) sum += widen(values.element[w]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[int64_t(blockIdx.y) * gridDim.x + i] = sum;
}

// A warp adds up the shares of an output.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_of_shares_kernel(SumAxes axes, int shares, const float* partials, float* sums) {
  const int64_t outputs = axes.kept.count * axes.inner, i = thread_index() / 32;
  if (i >= outputs) return;
  float sum = 0;
  for (int share = int(threadIdx.x) % 32; share < shares; share += 32) sum += partials[share * outputs + i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[axes.kept.offset(i / axes.inner, 1) + i % axes.inner * axes.inner_stride] = sum;
}

// Whether packs of W lie along the innermost axis, which is summed over.
template <int W>
bool has_packs(const SumAxes& axes) {
  const AxisList& reduced = axes.reduced;
  if (axes.inner != 1 || reduced.rank == 0) return false;
  const int last = reduced.rank - 1;
  bool even = reduced.stride[0][last] == 1 && reduced.extent[last] % W == 0;
  for (int axis = 0; axis < last; ++axis) even = even && reduced.stride[0][axis] % W == 0;
  for (int axis = 0; axis < axes.kept.rank; ++axis) even = even && axes.kept.stride[0][axis] % W == 0;
  return even;
}

template <typename T>
std::unique_ptr<Kernel> make_shared_sum(const SumAxes& axes, int shares) {
  const int64_t outputs = axes.kept.count * axes.inner;
  return make_kernel(
      [=](const KernelContext& c) {
        constexpr int W = 16 / sizeof(T);
        auto* partials = static_cast<float*>(c.workspace);
        const dim3 grid{unsigned(outputs), unsigned(shares)};
        const auto kernel =
            has_packs<W>(axes) && aligned(c.inputs[0]) ? sum_shares_kernel<W, T> : sum_shares_kernel<1, T>;
        kernel<<<grid, kThreads, 0, stream_of(c)>>>(axes, input<T>(c, 0), partials);
        check_launch("sum of axes, in shares");
        sum_of_shares_kernel<T><<<unsigned((outputs * 32 + kThreads - 1) / kThreads), kThreads, 0, stream_of(c)>>>(
            axes, shares, partials, output<float>(c, 0));
        check_launch("sum of shares");
      },
      outputs * shares * int64_t(sizeof(float)));
}

template <typename T>
std::unique_ptr<Kernel> make_sum(const SumAxes& axes, int multiprocessors) {
  const bool in_order = axes.inner_stride == 1;
  if (axes.reduced.rank == 0 && axes.kept.rank == 0 && in_order) {
    return make_kernel([=, count = axes.inner](const KernelContext& c) {
      launch_elementwise("sum of no axis", stream_of(c), multiprocessors, count, Same{}, output<float>(c, 0),
                         input<T>(c, 0));
    });
  }
  // Leading axes are summed over: the columns of a matrix, or of one column.
  const bool counted = axes.inner <= std::numeric_limits<int>::max();  // Columns::channels is an int
  if (counted && axes.kept.rank == 0 && axes.reduced.rank == 1 && axes.reduced.stride[0][0] == axes.inner && in_order) {
    return make_column_sum<T>(axes.reduced.count, axes.inner, 1.0f, multiprocessors);
  }
  const int64_t outputs = axes.kept.count * axes.inner, blocks = int64_t(multiprocessors) * 8;
  const int64_t shares = outputs == 0 ? 1 : std::min(blocks / outputs, axes.reduced.count / (kThreads * 8));
  if (shares > 1) return make_shared_sum<T>(axes, int(shares));
  return make_kernel([=](const KernelContext& c) {
    if (outputs == 0) return;
    if (outputs < blocks && axes.reduced.count >= kThreads) {
      sum_axes_kernel<kThreads>
          <<<unsigned(outputs), kThreads, 0, stream_of(c)>>>(axes, input<T>(c, 0), output<float>(c, 0));
    } else {
      sum_axes_kernel<32><<<blocks_for(outputs * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(
          axes, input<T>(c, 0), output<float>(c, 0));
    }
    check_launch("sum of axes");
  });
}

}  // namespace

void register_reduce_sum_to_cuda(OpRegistry& registry) {
  registry.find("arbalest.SumTo")->cuda = [](const KernelRequest& request) {
    const SumAxes axes(Strided({request.inputs[0], request.outputs[0]}));
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype,
                     [=](auto element) { return make_sum<decltype(element)>(axes, multiprocessors); });
  };
}

}  // namespace arbalest
