// Add: the sum of two tensors of one shape.

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

std::unique_ptr<Kernel> add_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const int64_t count = request.outputs[0].elements();
  return make_kernel([count](const KernelContext& context) {
    const T *a = input<T>(context, 0), *b = input<T>(context, 1);
    T* c = output<T>(context, 0);
    parallel_for(count, 1, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) c[i] = narrow<T>(widen(a[i]) + widen(b[i]));
    });
  });
}

void infer_add(InferContext& context) {
  const TensorType& a = floating_input(context, 0);
  expect_input(context, 1, a, "the type of 'A' (Add does not broadcast)");
  context.set_output(0, a);
}

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{8, 64, 16, 16}}) {
    samples.push_back({.name = to_string(shape),
                       .inputs = std::vector<Sample::Input>(2, {{DataType::Float32, shape}}),
                       .tolerance = 1e-6});
  }
  return samples;
}

}  // namespace

void register_add(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Add",
                .doc = "A + B, of one shape",
                .inputs = {{.name = "A", .lowered = true}, {.name = "B", .lowered = true}},
                .outputs = {{.name = "C", .lowered = true}},
                .infer = infer_add,
                .grad =
                    [](GradContext& c) {
                      for (const size_t i : {size_t{0}, size_t{1}}) {
                        if (c.needs_gradient(i)) c.set_input_gradient(i, c.output_gradient(0));
                      }
                    },
                .cost = elementwise_cost(1),
                .samples = samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return add_cpu(r, t); })});
}

}  // namespace arbalest
