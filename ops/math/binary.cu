// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of elementwise operators of two inputs that broadcast, and of their gradients.

#include "ops/math/elementwise.h"
#include "ops/math/strided.cuh"

namespace arbalest {

using namespace cuda;

namespace {

template <typename Functor, size_t... I>
KernelFactory kernel_of(std::index_sequence<I...>) {
  return [](const KernelRequest& request) {
    std::vector<TensorType> types = {request.outputs[0]};
    types.insert(types.end(), request.inputs.begin(), request.inputs.end());
    const Strided walk(types);
    const Functor functor{elementwise::parameters_of(request.node)};
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        launch_strided(stream_of(c), multiprocessors, count, walk, functor, output<T>(c, 0), input<T>(c, I)...);
      });
    });
  };
}

template <typename Functor>
void set_forward(OpRegistry& registry, const std::string& name) {
  registry.find(name)->cuda = kernel_of<Functor>(std::make_index_sequence<2>());
}

template <typename Formula, typename Gradient>
void set_gradient(OpRegistry& registry, const std::string& name) {
  if constexpr (!Formula::kPassedOn) {
    registry.find(name)->cuda =
        kernel_of<Gradient>(std::make_index_sequence<1 + Gradient::kFirst + Gradient::kSecond>());
  }
}

}  // namespace

void register_math_binary_cuda(OpRegistry& registry) {
#define ARBALEST_ADD(Name, doc, attributes, low, high, value, gradient_a, gradient_b)                       \
  set_forward<elementwise::Name>(registry, #Name);                                                          \
  set_gradient<elementwise::Name::FormulaA, elementwise::Name::GradA>(registry, "arbalest." #Name "GradA"); \
  set_gradient<elementwise::Name::FormulaB, elementwise::Name::GradB>(registry, "arbalest." #Name "GradB");
  ARBALEST_BINARY_OPERATORS(ARBALEST_ADD)
#undef ARBALEST_ADD
}

}  // namespace arbalest
