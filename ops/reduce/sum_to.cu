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
  return make_kernel([=](const KernelContext& c) {
    const int64_t outputs = axes.kept.count * axes.inner;
    if (outputs == 0) return;
    if (outputs < int64_t(multiprocessors) * 8 && axes.reduced.count >= kThreads) {
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
