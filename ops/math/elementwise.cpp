// SPDX-License-Identifier: Apache-2.0
#include "ops/math/elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/math/strided.h"

namespace arbalest::elementwise {

std::vector<AttributeSpec> none() {
  return {};
}
std::vector<AttributeSpec> one(std::string name, double fallback) {
  return {float_spec(std::move(name), fallback, "as in the formula")};
}
std::vector<AttributeSpec> two(std::string first, double first_fallback, std::string second, double second_fallback) {
  return {float_spec(std::move(first), first_fallback, "as in the formula"),
          float_spec(std::move(second), second_fallback, "as in the formula")};
}
std::vector<AttributeSpec> flag(std::string name) {
  return {int_spec(std::move(name), 0, "0 or 1")};
}
std::vector<AttributeSpec> choice(std::string name, std::string first, std::string second) {
  AttributeSpec spec = string_spec(std::move(name), first, fmt::format("\"{}\" or \"{}\"", first, second));
  spec.choices = {first, second};
  return {spec};
}

Parameters parameters_of(const Node& node) {
  Parameters parameters;
  double* next = &parameters.alpha;
  for (const AttributeSpec& spec : node.op->attributes) {
    switch (spec.kind) {
      case AttributeKind::Float: *next = float_attribute(node, spec.name); break;
      case AttributeKind::Int: *next = flag_attribute(node, spec.name) ? 1 : 0; break;
      default: *next = string_attribute(node, spec.name) == spec.choices[1] ? 1 : 0;
    }
    next = &parameters.beta;
  }
  return parameters;
}

std::vector<Attributes> sample_attributes(const std::vector<AttributeSpec>& specs) {
  if (specs.empty()) return {{}};
  Attributes others;
  for (const AttributeSpec& spec : specs) {
    switch (spec.kind) {
      case AttributeKind::Float: {
        const double fallback = std::get<double>(*spec.fallback);
        others.set(spec.name, std::isfinite(fallback) ? 0.1 + 0.5 * fallback : fallback < 0 ? -0.4 : 0.5);
        break;
      }
      case AttributeKind::Int: others.set(spec.name, int64_t{1}); break;
      default: others.set(spec.name, spec.choices[1]);
    }
  }
  return {{}, others};
}

Shape broadcast_shape(const InferContext& context, const std::vector<size_t>& operands) {
  Shape shape = context.input(operands[0]).shape;
  for (size_t k = 1; k < operands.size(); ++k) {
    const size_t i = operands[k];
    const Shape& other = context.input(i).shape;
    if (other.size() > shape.size()) shape.insert(shape.begin(), other.size() - shape.size(), 1);
    for (size_t back = 1; back <= other.size(); ++back) {
      int64_t& extent = shape[shape.size() - back];
      const int64_t own = other[other.size() - back];
      if (extent != own && extent != 1 && own != 1) {
        const std::string others = k == 1
                                       ? input_name(context, operands[0]) + ", " + to_string(context.input(operands[0]))
                                       : "those before it, " + to_string(shape);
        context.fail(
            fmt::format("{} is {}; expected a shape that broadcasts with {}: of the axes counted from the last, "
                        "number {} has {} and {} elements",
                        input_name(context, i), to_string(context.input(i)), others, back, own, extent));
      }
      if (extent == 1) extent = own;
    }
  }
  for (const size_t i : operands) {
    if (context.input(i).shape.size() <= Strided::kMaxRank) continue;
    context.fail(fmt::format("{} is {}; expected a rank of at most {}", input_name(context, i),
                             to_string(context.input(i)), Strided::kMaxRank));
  }
  return shape;
}

Shape broadcast_shape(const InferContext& context, size_t a, size_t b) {
  return broadcast_shape(context, {a, b});
}

TensorType broadcast_type(const InferContext& context, const std::vector<size_t>& operands, DataType dtype) {
  TensorType type{dtype, broadcast_shape(context, operands)};
  for (auto i = operands.rbegin(); i != operands.rend(); ++i) {
    if (context.input(*i).shape == type.shape) type.layout = context.input(*i).layout;
  }
  return type;
}

std::vector<TensorType> walked_types(const KernelRequest& request) {
  std::vector<TensorType> types = {request.outputs[0]};
  types.insert(types.end(), request.inputs.begin(), request.inputs.end());
  return types;
}

}  // namespace arbalest::elementwise
