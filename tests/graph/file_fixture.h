// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small registry, so that these tests stand on the file formats alone, and a structural comparison of graphs.

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {

inline void infer_as_input(InferContext& context) {
  for (size_t i = 0; i < context.output_count(); ++i) {
    context.set_output(i, context.has_input(0) ? context.input(0) : TensorType{DataType::Float32, {}});
  }
}

inline const OpRegistry& file_test_ops() {
  static OpRegistry ops;
  static const bool filled = [] {
    const std::vector<OperandSpec> x = {{.name = "X"}}, y = {{.name = "Y"}};
    ops.add({.name = "Relu", .inputs = x, .outputs = y, .infer = infer_as_input});
    ops.add({.name = "Add", .inputs = {{.name = "A"}, {.name = "B"}}, .outputs = y, .infer = infer_as_input});
    ops.add({.name = "Clip",
             .inputs = {{.name = "X"},
                        {.name = "min", .arity = OperandSpec::Optional},
                        {.name = "max", .arity = OperandSpec::Optional}},
             .outputs = y,
             .infer = infer_as_input});
    ops.add({.name = "Split",
             .inputs = x,
             .outputs = {{.name = "a", .arity = OperandSpec::Optional}, {.name = "b", .arity = OperandSpec::Optional}},
             .infer = infer_as_input});
    ops.add({.name = "Concat",
             .inputs = {{.name = "X", .arity = OperandSpec::Variadic}},
             .outputs = y,
             .attributes = {{.name = "axis", .kind = AttributeKind::Int, .fallback = Attribute(int64_t{0})}},
             .infer = infer_as_input});
    ops.add(
        {.name = "Conv",
         .inputs = {{.name = "X"}, {.name = "W"}, {.name = "B", .arity = OperandSpec::Optional}},
         .outputs = y,
         .attributes = {{.name = "strides", .kind = AttributeKind::Ints, .fallback = Attribute(std::vector<int64_t>{})},
                        {.name = "group", .kind = AttributeKind::Int, .fallback = Attribute(int64_t{1})}},
         .infer = infer_as_input});
    ops.add({.domain = "arbalest",
             .name = "Conv",
             .inputs = x,
             .outputs = y,
             .attributes = {{.name = "filters", .kind = AttributeKind::Int},
                            {.name = "strides",
                             .kind = AttributeKind::Ints,
                             .fallback = Attribute(std::vector<int64_t>{1, 1})}},
             .infer = infer_as_input});
    ops.add({.domain = "arbalest",
             .name = "Prefetch",
             .outputs = {{.name = "image"}, {.name = "label"}},
             .attributes = {{.name = "source", .kind = AttributeKind::String},
                            {.name = "tags",
                             .kind = AttributeKind::Strings,
                             .fallback = Attribute(std::vector<std::string>{})}},
             .infer = infer_as_input});
    ops.add({.domain = "arbalest",
             .name = "Train",
             .inputs = {{.name = "loss"}},
             .outputs = {{.name = "token"}},
             .attributes = {{.name = "lr", .kind = AttributeKind::Float},
                            {.name = "momentum", .kind = AttributeKind::Float, .fallback = Attribute(0.0)},
                            {.name = "schedule", .kind = AttributeKind::String, .fallback = Attribute("constant")},
                            {.name = "milestones",
                             .kind = AttributeKind::Floats,
                             .fallback = Attribute(std::vector<double>{})}},
             .side_effect = true,
             .infer = [](InferContext& context) {
               context.set_output(0, {DataType::Token, {}});
             }});
    ops.add({.domain = "arbalest", .name = "ReluGrad", .inputs = x, .outputs = y, .internal = true});
    return true;
  }();
  (void)filled;
  return ops;
}

// The first difference that a user could see, or "". Ids, places and inferred types of intermediate values do not
// count.
inline std::string difference(const Graph& a, const Graph& b) {
  const auto name = [](const Graph& graph, ValueId id) { return id == kNone ? "" : graph.values[id].name; };
  const auto names = [&](const Graph& graph, const std::vector<ValueId>& ids) {
    std::string text;
    for (const ValueId id : ids) text += name(graph, id) + '\0';
    return text;
  };
  if (a.name != b.name) return "graph name";
  if (a.opsets != b.opsets) return "opsets";
  if (names(a, a.inputs) != names(b, b.inputs)) return "inputs";
  if (names(a, a.outputs) != names(b, b.outputs)) return "outputs";
  if (a.values.size() != b.values.size()) return fmt::format("{} values, {}", a.values.size(), b.values.size());
  for (const Value& value : a.values) {
    const ValueId other_id = b.find_value(value.name);
    if (other_id == kNone) return "no value " + value.name;
    const Value& other = b.values[other_id];
    if (value.role != other.role) return "role of " + value.name;
    if ((value.producer == kNone) != (other.producer == kNone)) return "producer of " + value.name;
    if (value.producer != kNone) continue;
    if (value.type != other.type) return "type of " + value.name;
    if (bool(value.initializer.data) != bool(other.initializer.data)) return "data of " + value.name;
    if (value.initializer.data && *value.initializer.data != *other.initializer.data) return "data of " + value.name;
  }
  if (a.nodes.size() != b.nodes.size()) return "number of nodes";
  for (const NodeId n : a.nodes.ids()) {
    const Node &left = a.nodes[n], &right = b.nodes[n];
    if (left.name != right.name || left.op != right.op) return "node " + left.name;
    if (left.inputs.size() != right.inputs.size() || names(a, left.inputs) != names(b, right.inputs)) {
      return "inputs of " + left.name;
    }
    if (left.outputs.size() != right.outputs.size() || names(a, left.outputs) != names(b, right.outputs)) {
      return "outputs of " + left.name;
    }
    auto other = right.attributes.begin();
    for (const NamedAttribute& attribute : left.attributes) {
      if (other == right.attributes.end() || attribute.name != other->name || attribute.value != other->value) {
        return fmt::format("attribute {} of {}", attribute.name, left.name);
      }
      ++other;
    }
    if (other != right.attributes.end()) return "attributes of " + left.name;
  }
  return "";
}

// The message of the GraphError that `action` throws, "" if it throws none; anything else passes through.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

// A folder of its own that goes with the test.
struct FileTestFolder {
  std::filesystem::path path;
  FileTestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "arbalest-files-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path = name;
  }
  ~FileTestFolder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

}  // namespace arbalest
