// Relu and its gradient.

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

std::unique_ptr<Kernel> relu_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const int64_t count = request.outputs[0].elements();
  return make_kernel([count](const KernelContext& context) {
    const T* x = input<T>(context, 0);
    T* y = output<T>(context, 0);
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      // NaN stays NaN, as in PyTorch.
      for (int64_t i = begin; i < end; ++i) y[i] = widen(x[i]) < 0 ? T(0) : x[i];
    });
  });
}

std::unique_ptr<Kernel> relu_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const int64_t count = request.outputs[0].elements();
  return make_kernel([count](const KernelContext& context) {
    const T *dy = input<T>(context, 0), *y = input<T>(context, 1);
    T* dx = output<T>(context, 0);
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T gradient = dy[i];  // loaded in any case, so that the loop vectorises
        dx[i] = widen(y[i]) > 0 ? gradient : T(0);
      }
    });
  });
}

std::vector<Sample> samples(int inputs) {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{1}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{8, 64, 16, 16}}) {
    samples.push_back({.name = to_string(shape),
                       .inputs = std::vector<Sample::Input>(size_t(inputs), {{DataType::Float32, shape}}),
                       .tolerance = 0});
  }
  return samples;
}

}  // namespace

void register_relu(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Relu",
                .doc = "max(X, 0)",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .infer = [](InferContext& c) { c.set_output(0, floating_input(c, 0)); },
                .grad =
                    [](GradContext& c) {
                      if (!c.needs_gradient(0)) return;
                      c.set_input_gradient(
                          0, c.add("arbalest.ReluGrad", "grad_input", {c.output_gradient(0), c.output(0)}, 1)[0]);
                    },
                .cost = elementwise_cost(1),
                .samples = [] { return samples(1); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return relu_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "ReluGrad",
                .doc = "dY where Y > 0, else 0",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "Y", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .internal = true,
                .infer =
                    [](InferContext& c) {
                      expect_input(c, 1, floating_input(c, 0), "the type of 'dY'");
                      c.set_output(0, c.input(0));
                    },
                .cost = elementwise_cost(1),
                .samples = [] { return samples(2); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return relu_grad_cpu(r, t); })});
}

}  // namespace arbalest
