// SPDX-License-Identifier: Apache-2.0

// Reductions over axes on CUDA.

#include "ops/reduce/reduce.cuh"
#include "ops/reduce/reduce.h"

namespace arbalest {

using namespace cuda;

namespace {

template <typename Reduction, typename T>
std::unique_ptr<Kernel> make_reduction(const SumAxes& axes, int multiprocessors) {
  using Greatest = ReductionLaunch<reductions::ReduceMax, T>;
  const ReductionLaunch<Reduction, T> reduction(axes, multiprocessors);
  const Greatest greatest(axes, multiprocessors);
  return make_kernel(
      [reduction, greatest](const KernelContext& c) {
        const T* x = input<T>(c, 0);
        T* y = output<T>(c, 0);
        if constexpr (std::is_same_v<Reduction, reductions::ReduceTies>) {
          reduction.run(c, x, input<T>(c, ReduceTiesInput::Y), y);
        } else {
          if constexpr (Reduction::kCentred) greatest.run(c, x, nullptr, y);
          reduction.run(c, x, y, y);
        }
      },
      std::max(reduction.workspace_bytes(), Reduction::kCentred ? greatest.workspace_bytes() : 0));
}

template <typename Reduction>
std::unique_ptr<Kernel> reduction(const KernelRequest& request) {
  using reductions::Integers;
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const SumAxes axes(reducing_walk(ReducedAxes(request.node, x.shape.size()), x, y));
  const int processors = multiprocessors_of(request);
  if constexpr (Reduction::kIntegers != Integers::None) {
    if (x.dtype == DataType::Int32) return make_reduction<Reduction, int32_t>(axes, processors);
    if (x.dtype == DataType::Int64) return make_reduction<Reduction, int64_t>(axes, processors);
  }
  if constexpr (Reduction::kIntegers == Integers::All) {
    if (x.dtype == DataType::Uint8 || x.dtype == DataType::Bool) {
      return make_reduction<Reduction, uint8_t>(axes, processors);
    }
  }
  return with_type(request, x.dtype,
                   [&](auto element) { return make_reduction<Reduction, decltype(element)>(axes, processors); });
}

}  // namespace

void register_reduce_reduce_cuda(OpRegistry& registry) {
#define ARBALEST_ADD(Name, doc, combination, integers, low, high, term, value, gradient) \
  registry.find(#Name)->cuda = reduction<reductions::Name>;
  ARBALEST_REDUCTIONS(ARBALEST_ADD)
#undef ARBALEST_ADD
  registry.find("arbalest.ReduceTies")->cuda = reduction<reductions::ReduceTies>;
}

}  // namespace arbalest
