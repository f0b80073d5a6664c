// arbalest ops: the operators that graph files may use.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "graph/op.h"
#include "tools/command/commands.h"

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

}  // namespace

std::string describe_operators(const std::string& name) {
  const std::vector<const Op*> operators = public_operators();
  std::vector<std::string> names;
  for (const Op* op : operators) names.push_back(op->qualified_name());
  if (!name.empty()) {
    auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) found = std::find(names.begin(), names.end(), "arbalest." + name);
    if (found != names.end()) return describe(*operators[size_t(found - names.begin())]);
    throw GraphError(
        fmt::format("unknown operator '{}'{}; 'arbalest ops' lists them", name, did_you_mean(name, names)));
  }
  size_t width = 0;
  for (const std::string& one : names) width = std::max(width, one.size());
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += fmt::format("{:<{}}  {}\n", names[i], width, operators[i]->doc);
  return text + "'arbalest ops OPERATOR' lists its inputs, outputs and attributes.\n";
}

int command_ops(const OpsOptions& options) {
  std::fputs(describe_operators(options.name).c_str(), stdout);
  return kDone;
}

}  // namespace arbalest
