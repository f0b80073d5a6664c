#include "ops/math/elementwise.h"

#include <fmt/format.h>

#include <algorithm>

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
      case AttributeKind::Float: others.set(spec.name, 0.1 + 0.5 * std::get<double>(*spec.fallback)); break;
      case AttributeKind::Int: others.set(spec.name, int64_t{1}); break;
      default: others.set(spec.name, spec.choices[1]);
    }
  }
  return {{}, others};
}

Shape broadcast_shape(const InferContext& context, size_t a, size_t b) {
  const Shape &x = context.input(a).shape, &y = context.input(b).shape;
  Shape shape(std::max(x.size(), y.size()));
  if (shape.size() > Strided::kMaxRank) {
    context.fail(fmt::format("{} is {}; expected a rank of at most {}",
                             input_name(context, x.size() >= y.size() ? a : b),
                             to_string(context.input(x.size() >= y.size() ? a : b)), Strided::kMaxRank));
  }
  for (size_t back = 1; back <= shape.size(); ++back) {
    const int64_t left = back <= x.size() ? x[x.size() - back] : 1, right = back <= y.size() ? y[y.size() - back] : 1;
    if (left != right && left != 1 && right != 1) {
      context.fail(
          fmt::format("{} is {}; expected a shape that broadcasts with {}, {}: of the axes counted from the last, "
                      "number {} has {} and {} elements",
                      input_name(context, b), to_string(context.input(b)), input_name(context, a),
                      to_string(context.input(a)), back, right, left));
    }
    shape[shape.size() - back] = left == 1 ? right : left;
  }
  return shape;
}

}  // namespace arbalest::elementwise
