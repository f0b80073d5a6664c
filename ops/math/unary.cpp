// SPDX-License-Identifier: Apache-2.0

// Elementwise operators of one input, and their gradients: the lines of ops/math/elementwise_table.h.

#include "ops/math/elementwise.h"
#include "ops/math/integers.h"

namespace arbalest {
namespace {

using elementwise::GradientRows, elementwise::Line, elementwise::TypedRows;

std::vector<Sample> unary_samples(const Line& line, size_t inputs) {
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

// "arbalest.ReluGrad": dY first, then X and Y if the formula mentions them.
void add_unary_gradient(OpRegistry& registry, const Line& line, const GradientRows& gradient) {
  std::vector<OperandSpec> inputs = {{.name = "dY", .lowered = true}};
  if (gradient.first) inputs.push_back({.name = "X", .lowered = true});
  if (gradient.second) inputs.push_back({.name = "Y", .lowered = true});
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
                .samples = [line, count = inputs.size()] { return unary_samples(line, count); },
                .cpu = row_kernels(gradient.rows),
                .element = gradient.element});
}

void add_unary(OpRegistry& registry, const Line& line, std::string_view text, const TypedRows& rows,
               const GradientRows& gradient) {
  registry.add(
      {.domain = "",
       .name = line.name,
       .doc = line.doc,
       .inputs = {{.name = "X", .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}},
       .attributes = line.attributes,
       .layout = std::nullopt,
       .infer =
           [integers = rows.int64s != nullptr](InferContext& c) {
             elementwise::parameters_of(c.node());
             c.set_output(0, integers ? number_input(c, 0) : floating_input(c, 0));
           },
       .grad =
           [op = "arbalest." + line.name + "Grad", first = gradient.first, second = gradient.second](GradContext& c) {
             if (!c.needs_gradient(0)) return;
             std::vector<ValueId> inputs = {c.output_gradient(0)};
             if (first) inputs.push_back(c.input(0));
             if (second) inputs.push_back(c.output(0));
             c.set_input_gradient(0, c.add(op, "grad_input", inputs, 1, c.node().attributes)[0]);
           },
       .cost = elementwise_cost(1),
       .samples = [line] { return unary_samples(line, 1); },
       .cpu = row_kernels(rows),
       .element = elementwise::element_function(text, {"x"}, rows)});
  add_unary_gradient(registry, line, gradient);
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
#define ARBALEST_ADD(Name, doc, attributes, low, high, value, gradient)                         \
  add_unary(registry, {#Name, doc, attributes, low, high}, Name::kText, number_rows<Name, 1>(), \
            gradient_rows<Name::Grad, false>());
  ARBALEST_UNARY_OPERATORS(ARBALEST_ADD)
#undef ARBALEST_ADD
  take_bounds(*registry.find("Clip"));
  registry.find("Neg")->arithmetic = Arithmetic::Adds;
}

}  // namespace arbalest
