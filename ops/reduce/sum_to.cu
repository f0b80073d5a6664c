// SPDX-License-Identifier: Apache-2.0

// arbalest.SumTo on CUDA.

#include <limits>

#include "ops/math/column_sum.cuh"
#include "ops/reduce/reduce.cuh"

namespace arbalest {

using namespace cuda;

namespace {

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
  const ReductionLaunch<reductions::ReduceSum, T, float> sum(axes, multiprocessors);
  return make_kernel([sum](const KernelContext& c) { sum.run(c, input<T>(c, 0), nullptr, output<float>(c, 0)); },
                     sum.workspace_bytes());
}

}  // namespace

void register_reduce_sum_to_cuda(OpRegistry& registry) {
  registry.find("arbalest.SumTo")->cuda = [](const KernelRequest& request) {
    const SumAxes axes(Strided({request.inputs[0], request.outputs[0]}));
    const int multiprocessors = multiprocessors_of(request);
    return with_type(request, request.inputs[0].dtype,
                     [=](auto element) { return make_sum<decltype(element)>(axes, multiprocessors); });
  };
}

}  // namespace arbalest
