// SPDX-License-Identifier: Apache-2.0
#include "ops/definition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace arbalest {

std::string input_name(const InferContext& context, size_t i) {
  const OperandSpec* spec = context.node().op->input_spec(i);
  if (!spec) return fmt::format("input {}", i);
  if (spec->arity == OperandSpec::Variadic) return fmt::format("input {} ('{}')", i, spec->name);
  return fmt::format("input '{}'", spec->name);
}

const TensorType& floating_input(const InferContext& context, size_t i) {
  const TensorType& type = context.input(i);
  if (!is_floating(type.dtype)) {
    const bool number = type.dtype != DataType::Token && type.dtype != DataType::String;
    context.fail(fmt::format("{} is {}; expected float, double or bfloat16{}", input_name(context, i), to_string(type),
                             number ? "; Cast <to = 1> makes floats of it" : ""));
  }
  return type;
}

const TensorType& number_input(const InferContext& context, size_t i) {
  const TensorType& type = context.input(i);
  if (type.dtype == DataType::Bool || type.dtype == DataType::Token) {
    context.fail(fmt::format("{} is {}; expected float, double, bfloat16, int32, int64 or uint8",
                             input_name(context, i), to_string(type)));
  }
  return type;
}

const TensorType& floating_input(const InferContext& context, size_t i, std::initializer_list<size_t> ranks) {
  const TensorType& type = floating_input(context, i);
  if (std::find(ranks.begin(), ranks.end(), type.shape.size()) == ranks.end()) {
    const bool column = type.shape.size() == 1 && std::find(ranks.begin(), ranks.end(), 2) != ranks.end();
    context.fail(fmt::format("{} is {}, of rank {}; expected rank {}{}", input_name(context, i), to_string(type),
                             type.shape.size(), fmt::join(ranks, " or "),
                             column ? "; Unsqueeze <axes = [1]> makes rows of one number each" : ""));
  }
  return type;
}

void expect_input(const InferContext& context, size_t i, const TensorType& expected, std::string_view why) {
  const TensorType& type = context.input(i);
  if (type.dtype == expected.dtype && type.shape == expected.shape) return;
  context.fail(fmt::format("{} is {}; expected {}{}{}", input_name(context, i), to_string(type), to_string(expected),
                           why.empty() ? "" : ", ", why));
}

bool flag_attribute(const Node& node, std::string_view name) {
  const int64_t value = int_attribute(node, name);
  if (value != 0 && value != 1) fail(node, fmt::format("attribute '{}' is {}; expected 0 or 1", name, value));
  return value == 1;
}

int64_t int_attribute_from(const Node& node, std::string_view name, int64_t least) {
  const int64_t value = int_attribute(node, name);
  if (value < least) fail(node, fmt::format("attribute '{}' is {}; expected at least {}", name, value, least));
  return value;
}

double positive_float(const Node& node, std::string_view name) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  const double value = float_attribute(node, name);
  if (value >= kLeast && std::isfinite(float(value))) return value;
  fail(node, fmt::format("attribute '{}' is {}; expected more than 0, within what a float holds ({:.3g} to {:.3g})",
                         name, value, kLeast, double(std::numeric_limits<float>::max())));
}

bool is_given(const Node& node, const AttributeSpec& spec) {
  const Attribute* value = node.attributes.find(spec.name);
  return value && spec.fallback && convert(*value, spec.kind) != spec.fallback;
}

void refuse_unread(const Node& node, const AttributeSpec& spec, std::string_view choice, const std::string& chosen,
                   const std::vector<std::string>& readers) {
  const bool reads = std::find(readers.begin(), readers.end(), chosen) != readers.end();
  if (reads || readers.empty() || !is_given(node, spec)) return;
  fail(node, fmt::format("attribute '{}' belongs to {} \"{}\"; \"{}\" has none: {} takes it out", spec.name, choice,
                         fmt::join(readers, "\" or \""), chosen, to_string(*spec.fallback)));
}

std::vector<bool> named_axes(const InferContext& context, int64_t rank) {
  std::vector<bool> named(size_t(rank), false);
  for (const int64_t axis : context.ints("axes")) {
    const int64_t at = axis < 0 ? axis + rank : axis;
    if (at < 0 || at >= rank) {
      context.fail(
          fmt::format("'axes' holds {}; expected {} to {} for a tensor of {} axes", axis, -rank, rank - 1, rank));
    }
    if (named[size_t(at)]) context.fail(fmt::format("'axes' names axis {} twice", at));
    named[size_t(at)] = true;
  }
  return named;
}

int64_t onnx_version(const Graph& graph) {
  for (const auto& [domain, version] : graph.opsets) {
    if (domain.empty() || domain == "ai.onnx") return version;
  }
  return std::numeric_limits<int64_t>::max();
}

const TensorType& input_type(const Graph& graph, const Node& node, size_t i) {
  return graph.values[node.inputs[i]].type;
}

const TensorType& output_type(const Graph& graph, const Node& node, size_t i) {
  return graph.values[node.outputs[i]].type;
}

ValueId zeros_of(GradContext& context, ValueId x, const std::string& label) {
  const auto cast = [&](ValueId value, const std::string& name, DataType to) {
    return context.add("Cast", name, {value}, 1, {{"to", onnx_number(to)}})[0];
  };
  const ValueId zero = context.add("Not", label + ".not", {cast(x, label + ".truth", DataType::Bool)}, 1)[0];
  return cast(zero, label, context.type(x).dtype);
}

std::function<Cost(const Graph&, const Node&)> elementwise_cost(double flops_per_element) {
  return [flops_per_element](const Graph& graph, const Node& node) {
    return Cost{flops_per_element * double(output_type(graph, node, 0).elements()), operand_bytes(graph, node)};
  };
}

Rows rows_of(const TensorType& type) {
  const int64_t channels = type.shape[1];
  return {channels ? type.elements() / channels : 0, channels};
}

std::string to_string(const std::vector<int64_t>& values, char open, char close) {
  return fmt::format("{}{}{}", open, fmt::join(values, ", "), close);
}

OperandSpec lowered(std::string name, OperandSpec::Arity arity) {
  return {.name = std::move(name), .arity = arity, .lowered = true};
}
OperandSpec plain(std::string name, OperandSpec::Arity arity) {
  return {.name = std::move(name), .arity = arity};
}

AttributeSpec int_spec(std::string name, int64_t fallback, std::string doc) {
  return {std::move(name), AttributeKind::Int, Attribute(fallback), std::move(doc)};
}
AttributeSpec float_spec(std::string name, double fallback, std::string doc) {
  return {std::move(name), AttributeKind::Float, Attribute(fallback), std::move(doc)};
}
AttributeSpec string_spec(std::string name, std::string fallback, std::string doc) {
  return {std::move(name), AttributeKind::String, Attribute(std::move(fallback)), std::move(doc)};
}
AttributeSpec ints_spec(std::string name, std::vector<int64_t> fallback, std::string doc) {
  return {std::move(name), AttributeKind::Ints, Attribute(std::move(fallback)), std::move(doc)};
}
AttributeSpec floats_spec(std::string name, std::vector<double> fallback, std::string doc) {
  return {std::move(name), AttributeKind::Floats, Attribute(std::move(fallback)), std::move(doc)};
}
AttributeSpec strings_spec(std::string name, std::vector<std::string> fallback, std::string doc) {
  return {std::move(name), AttributeKind::Strings, Attribute(std::move(fallback)), std::move(doc)};
}
AttributeSpec required_spec(std::string name, AttributeKind kind, std::string doc) {
  return {std::move(name), kind, std::nullopt, std::move(doc)};
}

AttributeSpec ignore_spec() {
  return ints_spec("ignore_index", {},
                   "where labels are classes: a label whose samples take no part; none: there is none");
}

IgnoredLabel ignored_label(const Node& node) {
  const std::vector<int64_t> labels = ints_attribute(node, "ignore_index");
  if (labels.empty()) return {};
  const bool fits =
      labels[0] >= std::numeric_limits<int32_t>::min() && labels[0] <= std::numeric_limits<int32_t>::max();
  if (labels.size() > 1 || !fits) {
    fail(node,
         fmt::format("attribute 'ignore_index' is {}; expected one label, an int32", to_string(labels, '[', ']')));
  }
  return {true, int32_t(labels[0])};
}

}  // namespace arbalest
