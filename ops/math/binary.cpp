// SPDX-License-Identifier: Apache-2.0

// Elementwise operators of two inputs that broadcast, and their gradients: the lines of ops/math/elementwise_table.h.

#include <array>
#include <optional>

#include "graph/constants.h"
#include "ops/math/elementwise.h"
#include "ops/math/integers.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using elementwise::GradientRows, elementwise::Line, elementwise::parameters_of, elementwise::TypedRows;

// Equal shapes, a scalar, one number a channel, a row, columns that meet rows, channels-last images and more axes.
struct BinaryShapes {
  Shape a, b, out;
};
const std::vector<BinaryShapes>& binary_shapes() {
  static const std::vector<BinaryShapes> shapes = {
      {{}, {}, {}},
      {{3, 5}, {3, 5}, {3, 5}},
      {{2, 7, 5, 3}, {2, 7, 5, 3}, {2, 7, 5, 3}},
      {{4, 32, 16, 16}, {4, 32, 16, 16}, {4, 32, 16, 16}},
      {{3, 5}, {}, {3, 5}},
      {{1}, {4, 6}, {4, 6}},
      {{9, 7}, {7}, {9, 7}},
      {{64, 40}, {40}, {64, 40}},
      {{2, 16, 5, 3}, {1, 16, 1, 1}, {2, 16, 5, 3}},
      {{2, 8, 6, 4}, {8, 1, 1}, {2, 8, 6, 4}},
      {{2, 3, 5, 7}, {2, 3, 1, 1}, {2, 3, 5, 7}},
      {{2, 3, 5, 7}, {7}, {2, 3, 5, 7}},
      {{4, 1}, {1, 5}, {4, 5}},
      {{1, 3, 1, 8}, {2, 1, 4, 1}, {2, 3, 4, 8}},
      {{3, 8}, {1, 3, 8}, {1, 3, 8}},
      {{2, 1, 3, 1, 2, 4}, {5, 3, 2, 1, 4}, {2, 5, 3, 2, 2, 4}},
  };
  return shapes;
}

std::string name_of_binary(const BinaryShapes& shapes, const Attributes& attributes) {
  return to_string(shapes.a) + " and " + to_string(shapes.b) + (attributes.empty() ? "" : ", other attributes");
}

std::vector<Sample> binary_forward_samples(const Line& line) {
  std::vector<Sample> samples;
  for (const Attributes& attributes : elementwise::sample_attributes(line.attributes)) {
    for (const BinaryShapes& s : binary_shapes()) {
      samples.push_back(
          {.name = name_of_binary(s, attributes),
           .inputs = {{{DataType::Float32, s.a}, line.low, line.high}, {{DataType::Float32, s.b}, line.low, line.high}},
           .attributes = attributes,
           .tolerance = 2e-6});
    }
  }
  return samples;
}

std::vector<Sample> binary_gradient_samples(const Line& line, const GradientRows& gradient) {
  std::vector<Sample> samples;
  for (const Attributes& attributes : elementwise::sample_attributes(line.attributes)) {
    for (const BinaryShapes& s : binary_shapes()) {
      Sample sample{.name = name_of_binary(s, attributes),
                    .inputs = {{{DataType::Float32, s.out}}},
                    .attributes = attributes,
                    .tolerance = 2e-6};
      if (gradient.first) sample.inputs.push_back({{DataType::Float32, s.a}, line.low, line.high});
      if (gradient.second) sample.inputs.push_back({{DataType::Float32, s.b}, line.low, line.high});
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

// All inputs have elements of one type, but those of B may differ if `mixed` says so.
void infer_forward(InferContext& context, bool mixed = false) {
  parameters_of(context.node());
  const DataType dtype = number_input(context, 0).dtype;
  std::vector<size_t> all = {0};
  for (size_t i = 1; i < context.input_count(); ++i) {
    const TensorType& type = number_input(context, i);
    if (type.dtype != dtype && !mixed) {
      expect_input(context, i, {dtype, type.shape}, "elements of the type of " + input_name(context, 0));
    }
    all.push_back(i);
  }
  context.set_output(0, elementwise::broadcast_type(context, all, dtype));
}

void infer_binary_gradient(InferContext& context) {
  const TensorType& dy = floating_input(context, 0);
  for (size_t i = 1; i < context.input_count(); ++i) {
    if (elementwise::broadcast_shape(context, 0, i) != dy.shape)
      expect_input(context, i, dy, "or what broadcasts to it");
  }
  context.set_output(0, dy);
}

// "arbalest.MulGradA": dY times the derivative by A, in dY's shape; A and B are inputs if the formula mentions them.
void add_binary_gradient(OpRegistry& registry, const Line& line, const char* operand, const GradientRows& gradient) {
  std::vector<OperandSpec> inputs = {{.name = "dY", .lowered = true}};
  if (gradient.first) inputs.push_back({.name = "A", .lowered = true});
  if (gradient.second) inputs.push_back({.name = "B", .lowered = true});
  registry.add({.domain = "arbalest",
                .name = line.name + "Grad" + operand,
                .doc = "the gradient of " + line.name + "'s " + operand + ", before it is summed over broadcast axes",
                .inputs = inputs,
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = line.attributes,
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_binary_gradient,
                .cost = elementwise_cost(1),
                .samples = [line, gradient] { return binary_gradient_samples(line, gradient); },
                .cpu = row_kernels(gradient.rows),
                .element = gradient.element});
}

// The gradients of A and B; none if it is what flows back into the output.
using GradientsOfBoth = std::array<std::optional<GradientRows>, 2>;

template <typename Formula, typename Gradient>
std::optional<GradientRows> unless_passed_on() {
  if constexpr (Formula::kPassedOn) {
    return std::nullopt;
  } else {
    return elementwise::gradient_rows<Gradient, true>();
  }
}

template <typename Functor>
GradientsOfBoth gradients_of_both() {
  return {unless_passed_on<typename Functor::FormulaA, typename Functor::GradA>(),
          unless_passed_on<typename Functor::FormulaB, typename Functor::GradB>()};
}

// The gradient of input i: what flows back into the output, times the derivative, summed over the axes along which the
// input was broadcast.
void set_binary_gradient(GradContext& c, size_t i, const std::string& op, const std::optional<GradientRows>& rows) {
  if (!c.needs_gradient(i)) return;
  ValueId gradient = c.output_gradient(0);
  if (rows) {
    std::vector<ValueId> inputs = {gradient};
    if (rows->first) inputs.push_back(c.input(BinaryInput::A));
    if (rows->second) inputs.push_back(c.input(BinaryInput::B));
    gradient = c.add(op, i == 0 ? "grad_a" : "grad_b", inputs, 1, c.node().attributes)[0];
  }
  if (c.type(c.input(i)).shape != c.type(c.output(0)).shape) {
    gradient = c.add("arbalest.SumTo", i == 0 ? "sum_a" : "sum_b", {gradient, c.input(i)}, 1)[0];
  }
  c.set_input_gradient(i, gradient);
}

void add_binary(OpRegistry& registry, const Line& line, std::string_view text, const TypedRows& rows,
                const GradientsOfBoth& gradients) {
  registry.add({.domain = "",
                .name = line.name,
                .doc = line.doc,
                .inputs = {{.name = "A", .lowered = true}, {.name = "B", .lowered = true}},
                .outputs = {{.name = "C", .lowered = true}},
                .attributes = line.attributes,
                .layout = std::nullopt,
                .infer = [](InferContext& c) { infer_forward(c); },
                .grad =
                    [op = "arbalest." + line.name, gradients](GradContext& c) {
                      set_binary_gradient(c, 0, op + "GradA", gradients[0]);
                      set_binary_gradient(c, 1, op + "GradB", gradients[1]);
                    },
                .cost = elementwise_cost(1),
                .samples = [line] { return binary_forward_samples(line); },
                .cpu = row_kernels(rows),
                .element = elementwise::element_function(text, {"a", "b"}, rows)});
  if (gradients[0]) add_binary_gradient(registry, line, "A", *gradients[0]);
  if (gradients[1]) add_binary_gradient(registry, line, "B", *gradients[1]);
}

// Max, Min and Sum take any number of inputs, one after the other: others than two become nodes of two.
void make_variadic(Op& op) {
  op.inputs = {{.name = "data", .arity = OperandSpec::Variadic, .lowered = true}};
  op.expands = [](const InferContext& c) { return c.input_count() != 2; };
  op.expand = [name = op.name](ExpandContext& c) {
    const size_t count = c.node().inputs.size();
    ValueId result = c.input(0);
    if (count == 1) result = c.add("Identity", "", {result}, 1)[0];
    for (size_t i = 1; i < count; ++i) {
      const std::string label = i + 1 < count ? "first_" + std::to_string(i + 1) : "";
      result = c.add(name, label, {result, c.input(i)}, 1)[0];
    }
    c.replace_output(0, result);
  };
  op.cpu = [two = op.cpu](const KernelRequest& request) {
    if (request.inputs.size() != 2) throw RunError(request.node.op->name + ": the kernel takes two inputs");
    return two(request);
  };
}

// The mean is the sum divided by the number of inputs.
void add_mean(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Mean",
                .doc = "the mean of all inputs, broadcast",
                .inputs = {{.name = "data", .arity = OperandSpec::Variadic, .lowered = true}},
                .outputs = {{.name = "mean", .lowered = true}},
                .layout = std::nullopt,
                .infer =
                    [](InferContext& c) {
                      floating_input(c, 0);
                      infer_forward(c);
                    },
                .expand =
                    [](ExpandContext& c) {
                      const size_t count = c.node().inputs.size();
                      const ValueId sum = c.add("Sum", "sum", c.node().inputs, 1)[0];
                      const ValueId divisor = c.constant("count", c.type(sum).dtype, double(count));
                      c.replace_output(0, c.add("Div", "", {sum, divisor}, 1)[0]);
                    }});
}

// The operators that make a power by a constant exponent, each of what the one before it makes, the first of A. Mul
// multiplies by A. None: Pow's kernel computes the power.
std::vector<std::string_view> steps_of_power(const Graph& graph, const Node& node) {
  using In = BinaryInput;
  const TensorType &a = graph.values[node.input(In::A)].type, &y = graph.values[node.output()].type;
  const std::optional<double> exponent = number_of(graph, node.input(In::B));
  if (!exponent || !is_floating(a.dtype) || a.shape != y.shape) return {};
  if (*exponent == 1) return {op::Identity};
  if (*exponent == 2) return {op::Mul};
  if (*exponent == 3) return {op::Mul, op::Mul};
  if (*exponent == 0.5) return {op::Sqrt};
  if (*exponent == -0.5) return {op::Sqrt, op::Reciprocal};
  if (*exponent == -1) return {op::Reciprocal};
  if (*exponent == -2) return {op::Mul, op::Reciprocal};
  return {};
}

// Exponents may have another type: they, or integers with floating exponents both, are converted first. A power by a
// small constant is a product or a root.
void expand_powers(Op& pow) {
  using In = BinaryInput;
  pow.infer = [](InferContext& c) { infer_forward(c, true); };
  pow.expands = [](const InferContext& c) {
    return c.input(In::A).dtype != c.input(In::B).dtype || !steps_of_power(c.graph(), c.node()).empty();
  };
  pow.expand = [](ExpandContext& c) {
    const std::vector<std::string_view> steps = steps_of_power(c.graph(), c.node());
    ValueId made = c.input(In::A);
    for (size_t i = 0; i < steps.size(); ++i) {
      std::vector<ValueId> inputs = {made};
      if (steps[i] == op::Mul) inputs.push_back(c.input(In::A));
      made = c.add(steps[i], i + 1 == steps.size() ? "" : "power", std::move(inputs), 1)[0];
    }
    if (!steps.empty()) return c.replace_output(0, made);
    const DataType base = c.type(c.input(In::A)).dtype, exponent = c.type(c.input(In::B)).dtype;
    const auto cast = [&](ValueId value, const char* label, DataType to) {
      return c.add("Cast", label, {value}, 1, {{"to", onnx_number(to)}})[0];
    };
    if (is_floating(base) || !is_floating(exponent)) {
      c.replace_output(0, c.add("Pow", "", {c.input(In::A), cast(c.input(In::B), "exponent", base)}, 1)[0]);
      return;
    }
    const ValueId power = c.add("Pow", "power", {cast(c.input(In::A), "base", exponent), c.input(In::B)}, 1)[0];
    c.replace_output(0, cast(power, "", base));
  };
  pow.cpu = [same = pow.cpu](const KernelRequest& request) {
    if (request.inputs[In::A].dtype != request.inputs[In::B].dtype)
      throw RunError("Pow: the kernel takes one element type");
    return same(request);
  };
}

// PRelu's slope is broadcast to X, not X to the slope.
void broadcast_one_way(Op& prelu) {
  prelu.inputs[0].name = "X";
  prelu.inputs[BinaryInput::B].name = "slope";
  prelu.inputs[BinaryInput::B].part = OperandSpec::Weight;
  prelu.outputs[0].name = "Y";
  prelu.infer = [](InferContext& c) {
    const TensorType& x = floating_input(c, 0);
    infer_forward(c);
    if (elementwise::broadcast_shape(c, 0, 1) != x.shape) {
      c.fail("input 'slope' is " + to_string(c.input(BinaryInput::B)) + "; expected a shape that broadcasts to 'X', " +
             to_string(x));
    }
  };
  prelu.samples = [all = prelu.samples] {
    std::vector<Sample> samples;
    for (Sample& sample : all()) {
      const Shape &x = sample.inputs[BinaryInput::A].type.shape, &slope = sample.inputs[BinaryInput::B].type.shape;
      bool fits = slope.size() <= x.size();
      for (size_t back = 1; fits && back <= slope.size(); ++back) {
        const int64_t extent = slope[slope.size() - back];
        fits = extent == 1 || extent == x[x.size() - back];
      }
      if (fits) samples.push_back(std::move(sample));
    }
    return samples;
  };
}

}  // namespace

void register_math_binary(OpRegistry& registry) {
  using namespace elementwise;
#define ARBALEST_ADD(Name, doc, attributes, low, high, value, gradient_a, gradient_b)            \
  add_binary(registry, {#Name, doc, attributes, low, high}, Name::kText, number_rows<Name, 2>(), \
             gradients_of_both<Name>());
  ARBALEST_BINARY_OPERATORS(ARBALEST_ADD)
#undef ARBALEST_ADD
  for (const char* name : {"Max", "Min", "Sum"}) make_variadic(*registry.find(name));
  add_mean(registry);
  for (const char* name : {"Add", "Sub", "Sum"}) registry.find(name)->arithmetic = Arithmetic::Adds;
  registry.find("Mean")->arithmetic = Arithmetic::Averages;
  registry.find("Mul")->arithmetic = Arithmetic::Scales;
  registry.find("Div")->arithmetic = Arithmetic::Divides;
  expand_powers(*registry.find("Pow"));
  broadcast_one_way(*registry.find("PRelu"));
}

}  // namespace arbalest
