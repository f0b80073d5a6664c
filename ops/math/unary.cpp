// Elementwise operators of one input, and their gradients: the lines of ops/math/elementwise_table.h.

#include "ops/math/elementwise.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/math/integers.h"

namespace arbalest {
namespace {

using elementwise::dispatch_numbers, elementwise::Parameters, elementwise::parameters_of;

struct Line {
  std::string name, doc;
  std::vector<AttributeSpec> attributes;
  double low, high;
};

std::vector<Sample> samples(const Line& line, size_t inputs) {
  std::vector<Sample> samples;
  for (const Attributes& attributes : elementwise::sample_attributes(line.attributes)) {
    for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{4, 32, 16, 16}}) {
      samples.push_back(
          {.name = to_string(shape) + (attributes.empty() ? "" : ", other attributes"),
           .inputs = std::vector<Sample::Input>(inputs, {{DataType::Float32, shape}, line.low, line.high}),
           .attributes = attributes,
           .tolerance = 1e-6});
    }
  }
  return samples;
}

template <typename Functor>
KernelFactory forward_kernel() {
  return [](const KernelRequest& request) {
    const int64_t count = request.outputs[0].elements();
    const Parameters parameters = parameters_of(request.node);
    return dispatch_numbers<Functor>(request.inputs[0].dtype, [=](auto functor, auto element) {
      using T = decltype(element);
      functor.parameters = parameters;
      return make_kernel(
          [=](const KernelContext& c) { map_elements(count, functor, output<T>(c, 0), input<T>(c, 0)); });
    });
  };
}

template <typename Gradient>
KernelFactory gradient_kernel() {
  return floating_kernel([](const KernelRequest& request, auto element) {
    using T = decltype(element);
    const int64_t count = request.outputs[0].elements();
    return make_kernel([count, f = Gradient{parameters_of(request.node)}](const KernelContext& c) {
      if constexpr (Gradient::kFirst && Gradient::kSecond) {
        map_elements(count, f, output<T>(c, 0), input<T>(c, 0), input<T>(c, 1), input<T>(c, 2));
      } else if constexpr (Gradient::kFirst || Gradient::kSecond) {
        map_elements(count, f, output<T>(c, 0), input<T>(c, 0), input<T>(c, 1));
      } else {
        map_elements(count, f, output<T>(c, 0), input<T>(c, 0));
      }
    });
  });
}

// "arbalest.ReluGrad": dY first, then X and Y if the formula mentions them.
template <typename Gradient>
void add_gradient(OpRegistry& registry, const Line& line) {
  std::vector<OperandSpec> inputs = {{.name = "dY", .lowered = true}};
  if (Gradient::kFirst) inputs.push_back({.name = "X", .lowered = true});
  if (Gradient::kSecond) inputs.push_back({.name = "Y", .lowered = true});
  registry.add({.domain = "arbalest",
                .name = line.name + "Grad",
                .doc = "the gradient of " + line.name,
                .inputs = inputs,
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = line.attributes,
                .internal = true,
                .layout = std::nullopt,
                .infer =
                    [](InferContext& c) {
                      const TensorType& dy = floating_input(c, 0);
                      for (size_t i = 1; i < c.input_count(); ++i) expect_input(c, i, dy, "the type of 'dY'");
                      c.set_output(0, dy);
                    },
                .cost = elementwise_cost(1),
                .samples = [line, count = inputs.size()] { return samples(line, count); },
                .cpu = gradient_kernel<Gradient>()});
}

template <typename Functor>
void add_unary(OpRegistry& registry, const Line& line) {
  using Gradient = typename Functor::Grad;
  registry.add({.domain = "",
                .name = line.name,
                .doc = line.doc,
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = line.attributes,
                .layout = std::nullopt,
                .infer =
                    [](InferContext& c) {
                      parameters_of(c.node());
                      constexpr bool integers = elementwise::OfIntegers<Functor>::kAny;
                      c.set_output(0, integers ? number_input(c, 0) : floating_input(c, 0));
                    },
                .grad =
                    [op = "arbalest." + line.name + "Grad"](GradContext& c) {
                      if (!c.needs_gradient(0)) return;
                      std::vector<ValueId> inputs = {c.output_gradient(0)};
                      if (Gradient::kFirst) inputs.push_back(c.input(0));
                      if (Gradient::kSecond) inputs.push_back(c.output(0));
                      c.set_input_gradient(0, c.add(op, "grad_input", inputs, 1, c.node().attributes)[0]);
                    },
                .cost = elementwise_cost(1),
                .samples = [line] { return samples(line, 1); },
                .cpu = forward_kernel<Functor>()});
  add_gradient<Gradient>(registry, line);
}

// Since opset 11 the bounds are operands.
void take_bounds(Op& clip) {
  for (const char* bound : {"min", "max"}) {
    clip.inputs.push_back({.name = bound, .arity = OperandSpec::Optional, .constant = true});
  }
  clip.infer = [](InferContext& c) {
    c.number("min");
    c.number("max");
    c.set_output(0, number_input(c, 0));
  };
}

}  // namespace

void register_math_unary(OpRegistry& registry) {
  using namespace elementwise;
#define ARBALEST_ADD(Name, doc, attributes, low, high, value, gradient) \
  add_unary<Name>(registry, {#Name, doc, attributes, low, high});
  ARBALEST_UNARY_OPERATORS(ARBALEST_ADD)
#undef ARBALEST_ADD
  take_bounds(*registry.find("Clip"));
}

}  // namespace arbalest
