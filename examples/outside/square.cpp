// SPDX-License-Identifier: Apache-2.0

// An operator of one's own: Y = X · X, elementwise, and its gradient dX = 2 · X · dY, which is an operator as well.

#include <arbalest/arbalest.h>

#include "own.h"

using namespace arbalest;

namespace {

// A kernel for elements of type T. Tensors of equal types have their elements in the same order, whatever that is.
template <typename T>
std::unique_ptr<Kernel> square_kernel(int64_t count) {
  return make_kernel([count](const KernelContext& context) {
    const T* x = static_cast<const T*>(context.inputs[0]);
    T* y = static_cast<T*>(context.outputs[0]);
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] * x[i];
  });
}

template <typename T>
std::unique_ptr<Kernel> square_grad_kernel(int64_t count) {
  return make_kernel([count](const KernelContext& context) {
    const T* dy = static_cast<const T*>(context.inputs[0]);
    const T* x = static_cast<const T*>(context.inputs[1]);
    T* dx = static_cast<T*>(context.outputs[0]);
    for (int64_t i = 0; i < count; ++i) dx[i] = 2 * x[i] * dy[i];
  });
}

// Training runs in float; double is what the library's checks take for the truth.
void check_type(InferContext& context) {
  const DataType type = context.input(0).dtype;
  if (type != DataType::Float32 && type != DataType::Float64) context.fail("input 0 is neither float nor double");
}

std::vector<Sample> samples(int inputs) {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 5}, Shape{2, 3, 5, 4}}) {
    samples.push_back({.name = to_string(shape),
                       .inputs = std::vector<Sample::Input>(size_t(inputs), {{DataType::Float32, shape}}),
                       .tolerance = 1e-6});
  }
  return samples;
}

}  // namespace

void register_square() {
  register_operator({.domain = "own",
                     .name = "SquareGrad",
                     .doc = "2 X dY",
                     .inputs = {{.name = "dY"}, {.name = "X"}},
                     .outputs = {{.name = "dX"}},
                     .internal = true,
                     .infer =
                         [](InferContext& context) {
                           check_type(context);
                           if (!(context.input(0) == context.input(1)))
                             context.fail("the types of 'dY' and 'X' differ");
                           context.set_output(0, context.input(0));
                         },
                     .samples = [] { return samples(2); },
                     .cpu =
                         [](const KernelRequest& request) {
                           const TensorType& type = request.outputs[0];
                           return type.dtype == DataType::Float64 ? square_grad_kernel<double>(type.elements())
                                                                  : square_grad_kernel<float>(type.elements());
                         }});
  register_operator({.domain = "own",
                     .name = "Square",
                     .doc = "X squared",
                     .inputs = {{.name = "X"}},
                     .outputs = {{.name = "Y"}},
                     .infer =
                         [](InferContext& context) {
                           check_type(context);
                           context.set_output(0, context.input(0));
                         },
                     .grad =
                         [](GradContext& context) {
                           if (!context.needs_gradient(0)) return;
                           const auto dx = context.add("own.SquareGrad", "grad_input",
                                                       {context.output_gradient(0), context.input(0)}, 1);
                           context.set_input_gradient(0, dx[0]);
                         },
                     .samples = [] { return samples(1); },
                     .cpu =
                         [](const KernelRequest& request) {
                           const TensorType& type = request.outputs[0];
                           return type.dtype == DataType::Float64 ? square_kernel<double>(type.elements())
                                                                  : square_kernel<float>(type.elements());
                         }});
}
