// SPDX-License-Identifier: Apache-2.0

// Reductions over axes, and their gradients, on CUDA.

#include "ops/math/strided.cuh"
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
  const int processors = cuda_context(request).multiprocessors;
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

template <typename Gradient>
std::unique_ptr<Kernel> reduction_gradient(const KernelRequest& request) {
  const TensorType& dx = request.outputs[0];
  const Strided walk = reducing_gradient_walk(request);
  const int64_t count = dx.elements();
  const Gradient f{{.alpha = double(ReducedAxes(request.node, dx.shape.size()).count(dx.shape))}};
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      with_inputs<T, 1 + Gradient::kFirst + Gradient::kSecond>(c, [&](const auto*... in) {
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
      });
    });
  });
}

template <typename Reduction>
void set_reduction(OpRegistry& registry, const std::string& name) {
  registry.find(name)->cuda = reduction<Reduction>;
  if constexpr (Reduction::kGradient) {
    registry.find("arbalest." + name + "Grad")->cuda = reduction_gradient<typename Reduction::Grad>;
  }
}

}  // namespace

void register_reduce_reduce_cuda(OpRegistry& registry) {
#define ARBALEST_ADD(Name, doc, combination, integers, low, high, term, value, gradient) \
  set_reduction<reductions::Name>(registry, #Name);
  ARBALEST_REDUCTIONS(ARBALEST_ADD)
#undef ARBALEST_ADD
  registry.find("arbalest.ReduceTies")->cuda = reduction<reductions::ReduceTies>;
}

}  // namespace arbalest
