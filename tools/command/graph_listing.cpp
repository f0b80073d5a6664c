// SPDX-License-Identifier: Apache-2.0
#include "tools/command/graph_listing.h"

#include <fmt/format.h>

#include "base/error.h"
#include "graph/op.h"

namespace arbalest {
namespace {

const char* name_of(Role role) {
  switch (role) {
    case Role::Activation: return "activation";
    case Role::Input: return "input";
    case Role::Parameter: return "parameter";
    case Role::Frozen: return "frozen";
    case Role::State: return "state";
    case Role::Constant: return "constant";
  }
  return "";
}

std::string name_or_nothing(const Graph& graph, ValueId value) {
  return value == kNone ? std::string() : graph.values[value].name;
}

std::string shown(const Graph& graph, ValueId value) {
  return printable(name_or_nothing(graph, value));
}

std::string join(const Graph& graph, const std::vector<ValueId>& values, const char* separator) {
  std::string text;
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? separator : "") + shown(graph, values[i]);
  return text;
}

std::string attributes_of(const Node& node) {
  std::string text;
  for (const NamedAttribute& attribute : node.attributes) {
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", printable(attribute.name),
                        printable(to_string(attribute.value)));
  }
  return text.empty() ? text : " <" + text + ">";
}

std::string types_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::string text;
  for (const ValueId value : values) {
    if (value != kNone) text += (text.empty() ? "" : ", ") + to_string(graph.values[value].type);
  }
  return text;
}

nlohmann::json names(const Graph& graph, const std::vector<ValueId>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const ValueId value : values) list.push_back(name_or_nothing(graph, value));
  return list;
}

}  // namespace

std::string list_graph(const Graph& graph) {
  std::string text =
      fmt::format("graph {}: {} nodes, {} values\n", printable(graph.name), graph.nodes.size(), graph.values.size());
  for (const Value& value : graph.values) {
    if (value.producer != kNone || value.role == Role::Activation) continue;
    const std::string view = value.view.base == kNone
                                 ? std::string()
                                 : fmt::format(", in {} at {}", shown(graph, value.view.base), value.view.offset_bytes);
    text += fmt::format("{} {}  # {}{}\n", name_of(value.role), printable(value.name), to_string(value.type), view);
  }
  for (const Node& node : graph.nodes) {
    text += fmt::format("{} = {}{} ({})  # {}{}\n", join(graph, node.outputs, ", "), node.op->qualified_name(),
                        attributes_of(node), join(graph, node.inputs, ", "), types_of(graph, node.outputs),
                        node.stage == Stage::Forward ? std::string() : fmt::format(", {}", name_of(node.stage)));
  }
  for (const Carry& carry : graph.carries) {
    text += fmt::format("carry {} <- {}\n", shown(graph, carry.current), shown(graph, carry.next));
  }
  return text + fmt::format("outputs ({})\n", join(graph, graph.outputs, ", "));
}

nlohmann::json graph_record(const Graph& graph) {
  nlohmann::json record = {{"name", graph.name},
                           {"values", nlohmann::json::array()},
                           {"nodes", nlohmann::json::array()},
                           {"carries", nlohmann::json::array()},
                           {"outputs", names(graph, graph.outputs)}};
  for (const Value& value : graph.values) {
    record["values"].push_back({{"name", value.name}, {"type", to_string(value.type)}, {"role", name_of(value.role)}});
  }
  for (const Node& node : graph.nodes) {
    nlohmann::json attributes = nlohmann::json::object();
    for (const NamedAttribute& attribute : node.attributes) {
      std::visit([&](const auto& value) { attributes[attribute.name] = value; }, attribute.value);
    }
    record["nodes"].push_back({{"name", node.name},
                               {"op", node.op->qualified_name()},
                               {"inputs", names(graph, node.inputs)},
                               {"outputs", names(graph, node.outputs)},
                               {"attributes", attributes},
                               {"stage", name_of(node.stage)}});
  }
  for (const Carry& carry : graph.carries) {
    record["carries"].push_back(
        {{"current", name_or_nothing(graph, carry.current)}, {"next", name_or_nothing(graph, carry.next)}});
  }
  return record;
}

}  // namespace arbalest
