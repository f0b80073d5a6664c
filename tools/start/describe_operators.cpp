// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"
#include "base/other_names.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "tools/start/describe.h"

namespace arbalest {
namespace {

std::vector<const Op*> public_operators() {
  std::vector<const Op*> found;
  for (const Op& op : builtin_ops().all()) {
    if (!op.internal) found.push_back(&op);
  }
  std::sort(found.begin(), found.end(), [](const Op* a, const Op* b) {
    return a->domain != b->domain ? a->domain > b->domain : a->name < b->name;  // the layers and nodes of ours first
  });
  return found;
}

std::string list(const std::vector<OperandSpec>& operands) {
  std::vector<std::string> names;
  for (const OperandSpec& operand : operands) {
    const char* arity = operand.arity == OperandSpec::Optional   ? " (optional)"
                        : operand.arity == OperandSpec::Variadic ? " (one or more)"
                                                                 : "";
    names.push_back(operand.name + arity);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::string describe(const Op& op) {
  std::string text = fmt::format("{}: {}\n  inputs   {}\n  outputs  {}\n", op.qualified_name(), op.doc, list(op.inputs),
                                 list(op.outputs));
  std::vector<std::string> kinds;
  size_t name_width = 0, kind_width = 0;
  for (const AttributeSpec& attribute : op.attributes) {
    const std::string value = attribute.fallback ? " = " + to_string(*attribute.fallback) : ", required";
    kinds.push_back(fmt::format("{}{}", name_of(attribute.kind), value));
    name_width = std::max(name_width, attribute.name.size());
    kind_width = std::max(kind_width, kinds.back().size());
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    const AttributeSpec& attribute = op.attributes[i];
    text += fmt::format("  {:<{}}  {:<{}}  {}\n", attribute.name, name_width, kinds[i], kind_width, attribute.doc);
  }
  return text;
}

// Operators, a line each.
std::string listed(const std::vector<const Op*>& operators) {
  size_t width = 0;
  for (const Op* op : operators) width = std::max(width, op->qualified_name().size());
  std::string text;
  for (const Op* op : operators) text += fmt::format("{:<{}}  {}\n", op->qualified_name(), width, op->doc);
  return text;
}

std::string in_lower_case(std::string text) {
  for (char& c : text) c = char(std::tolower(uint8_t(c)));
  return text;
}

// The layer of an operator with explicit weights, and the other way round.
std::string see_also(const Op& op, const std::vector<const Op*>& operators) {
  std::vector<std::string> names;
  for (const Op* other : operators) {
    if (other != &op) names.push_back(other->qualified_name());
  }
  const std::string own = own_name(op.name, names);
  for (const Op* other : operators) {
    if (other->qualified_name() == own) return fmt::format("see also {}: {}\n", own, other->doc);
  }
  return "";
}

// "; optimizer = "adamw"" if `name` is that of an optimiser, or begins as one's.
std::string as_optimizer(const std::string& name) {
  const std::string lower = in_lower_case(name);
  for (const Op& op : builtin_ops().all()) {
    if (op.optimizer && op.optimizer->name.starts_with(lower)) {
      return fmt::format(", with optimizer = \"{}\"", op.optimizer->name);
    }
  }
  return "";
}

}  // namespace

std::string describe_operators(const std::string& name) {
  const std::vector<const Op*> operators = public_operators();
  if (name.empty()) return listed(operators) + "'arbalest ops OPERATOR' lists its inputs, outputs and attributes.\n";
  std::vector<std::string> names;
  for (const Op* op : operators) names.push_back(op->qualified_name());
  const auto described = [&](const std::string& known) {
    const Op& op = *operators[size_t(std::find(names.begin(), names.end(), known) - names.begin())];
    return describe(op) + see_also(op, operators);
  };
  for (const std::string& known : {name, "arbalest." + name}) {
    if (std::find(names.begin(), names.end(), known) != names.end()) return described(known);
  }
  if (const std::string own = own_name(name, names); !own.empty()) {
    return fmt::format("'{}' is called {} here{}.\n{}", name, own, as_optimizer(name), described(own));
  }
  const std::string word = in_lower_case(name);
  std::vector<const Op*> about;
  std::copy_if(operators.begin(), operators.end(), std::back_inserter(about), [&](const Op* op) {
    return in_lower_case(op->qualified_name() + " " + op->doc).find(word) != std::string::npos;
  });
  if (!about.empty()) return listed(about);
  throw GraphError(fmt::format("unknown operator '{}'{}; 'arbalest ops' lists them", name, did_you_mean(name, names)));
}

}  // namespace arbalest
