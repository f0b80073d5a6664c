// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of elementwise operators of one input, and of their gradients.

#include "ops/cuda/cuda_math.cuh"
#include "ops/math/elementwise.h"

namespace arbalest {

using namespace cuda;

namespace {

using elementwise::parameters_of;

template <typename Functor>
KernelFactory forward_kernel() {
  return [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    const Functor f{parameters_of(request.node)};
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        launch_elementwise("elementwise", stream_of(c), multiprocessors, count, f, output<T>(c, 0), input<T>(c, 0));
      });
    });
  };
}

template <typename Gradient>
KernelFactory gradient_kernel() {
  return [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    const Gradient f{parameters_of(request.node)};
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        with_inputs<T, 1 + Gradient::kFirst + Gradient::kSecond>(c, [&](const auto*... in) {
          launch_elementwise("elementwise gradient", stream_of(c), multiprocessors, count, f, output<T>(c, 0), in...);
        });
      });
    });
  };
}

}  // namespace

void register_math_unary_cuda(OpRegistry& registry) {
#define ARBALEST_ADD(Name, doc, attributes, low, high, value, gradient) \
  registry.find(#Name)->cuda = forward_kernel<elementwise::Name>();     \
  registry.find("arbalest." #Name "Grad")->cuda = gradient_kernel<elementwise::Name::Grad>();
  ARBALEST_UNARY_OPERATORS(ARBALEST_ADD)
#undef ARBALEST_ADD
}

}  // namespace arbalest
