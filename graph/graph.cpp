// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// The name itself, or with the first number that is free. After many, it is a number that is free after one that is
// taken, found by halving: to try each would take time quadratic in how many there are.
std::string unique_name(const Graph& graph, const std::string& wanted) {
  constexpr int64_t kTriedEach = 64;
  const auto numbered = [&](int64_t number) { return fmt::format("{}:{}", wanted, number); };
  const auto is_free = [&](int64_t number) { return graph.find_value(numbered(number)) == kNone; };
  if (graph.find_value(wanted) == kNone) return wanted;
  for (int64_t i = 1; i < kTriedEach; ++i) {
    if (is_free(i)) return numbered(i);
  }
  int64_t taken = kTriedEach - 1, unused = kTriedEach;
  for (; !is_free(unused); unused *= 2) taken = unused;
  while (unused - taken > 1) {
    const int64_t middle = taken + (unused - taken) / 2;
    (is_free(middle) ? unused : taken) = middle;
  }
  return numbered(unused);
}

// The attribute in the kind its op asks for.
template <typename T>
T attribute(const Node& node, std::string_view name, AttributeKind kind) {
  const AttributeSpec* spec = node.op->attribute_spec(name);
  if (!spec) throw std::logic_error(fmt::format("{} has no attribute '{}'", node.op->qualified_name(), name));
  const NamedAttribute* written = node.attributes.find_named(name);
  if (!written && !spec->fallback) {
    fail(node, fmt::format("attribute '{}' ({}) is missing", name, name_of(spec->kind)));
  }
  const Attribute& value = written ? written->value : *spec->fallback;
  if (auto converted = convert(value, kind)) return std::get<T>(*converted);
  Node place = node;
  if (written) place.where = written->where;
  fail(place, fmt::format("attribute '{}' is {}, expected {}", name, to_string(value), name_of(kind)));
}

}  // namespace

ValueId Graph::add_value(std::string value_name, TensorType type, Role role) {
  Value value;
  value.name = unique_name(*this, value_name);
  value.type = std::move(type);
  value.role = role;
  return add_value(std::move(value));
}

void Graph::index(const std::string& value_name, ValueId value) {
  by_name_.emplace(std::hash<std::string_view>{}(value_name), value);
}

ValueId Graph::add_value(Value value) {
  index(value.name, values.end_id());
  return values.push_back(std::move(value));
}

void Graph::rename(ValueId value, std::string new_name) {
  index(new_name, value);
  values[value].name = std::move(new_name);
}

void Graph::set_values(Table<ValueId, Value> all) {
  values = std::move(all);
  by_name_.clear();
  for (const ValueId value : values.ids()) index(values[value].name, value);
}

NodeId Graph::add_node(const Op& op, std::string node_name, std::vector<ValueId> node_inputs, int output_count,
                       Attributes attributes) {
  Node node;
  node.op = &op;
  node.inputs = std::move(node_inputs);
  node.attributes = std::move(attributes);
  const NodeId id = nodes.end_id();
  // If another node of that name makes the value of that name, this one is named as its first output will be.
  const ValueId same = output_count > 0 ? find_value(node_name) : kNone;
  const NodeId other = same == kNone ? kNone : values[same].producer;
  const bool taken = other != kNone && nodes[other].name == node_name;
  for (int i = 0; i < output_count; ++i) {
    const ValueId output = add_value(node_name, {});
    values[output].producer = id;
    node.outputs.push_back(output);
  }
  node.name = taken ? values[node.outputs[0]].name : std::move(node_name);
  nodes.push_back(std::move(node));
  return id;
}

ValueId Graph::find_value(std::string_view wanted) const {
  ValueId lowest = kNone;
  const auto [first, last] = by_name_.equal_range(std::hash<std::string_view>{}(wanted));
  for (auto it = first; it != last; ++it) {
    const ValueId value = it->second;
    if (values[value].name == wanted && (lowest == kNone || value < lowest)) lowest = value;
  }
  return lowest;
}

NodeId Graph::find_node(std::string_view wanted) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) { return node.name == wanted; });
  return found == nodes.end() ? kNone : nodes.id_of(found);
}

const Node* Graph::find_op(std::string_view wanted) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) { return node.is(wanted); });
  return found == nodes.end() ? nullptr : &*found;
}

Node* Graph::find_op(std::string_view wanted) {
  return const_cast<Node*>(std::as_const(*this).find_op(wanted));
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (Node& node : nodes) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
  std::replace(outputs.begin(), outputs.end(), from, to);
  for (Carry& carry : carries) {
    if (carry.next == from) carry.next = to;
  }
}

Table<ValueId, std::vector<NodeId>> Graph::consumers() const {
  Table<ValueId, std::vector<NodeId>> readers(values.size());
  for (const NodeId n : nodes.ids()) {
    for (const ValueId input : nodes[n].inputs) {
      if (input != kNone) readers[input].push_back(n);
    }
  }
  return readers;
}

Table<ValueId, bool> made_of_weights(const Graph& graph) {
  Table<ValueId, bool> found(graph.values.size());
  for (const ValueId v : found.ids()) {
    const Role role = graph.values[v].role;
    found[v] = role != Role::Activation && role != Role::Input;
  }
  for (const Node& node : graph.nodes) {
    const bool all = !node.inputs.empty() && !node.op->random &&
                     std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId input) { return input == kNone || found[input]; });
    for (const ValueId output : node.outputs) {
      if (output != kNone) found[output] = all;
    }
  }
  return found;
}

View storage_of(const Graph& graph, ValueId value) {
  View storage{value, 0};
  while (graph.values[storage.base].view.base != kNone) {
    const View& view = graph.values[storage.base].view;
    storage = {view.base, storage.offset_bytes + view.offset_bytes};
  }
  return storage;
}

int64_t int_attribute(const Node& node, std::string_view name) {
  return attribute<int64_t>(node, name, AttributeKind::Int);
}
double float_attribute(const Node& node, std::string_view name) {
  return attribute<double>(node, name, AttributeKind::Float);
}
std::string string_attribute(const Node& node, std::string_view name) {
  return attribute<std::string>(node, name, AttributeKind::String);
}
std::vector<int64_t> ints_attribute(const Node& node, std::string_view name) {
  return attribute<std::vector<int64_t>>(node, name, AttributeKind::Ints);
}
std::vector<double> floats_attribute(const Node& node, std::string_view name) {
  return attribute<std::vector<double>>(node, name, AttributeKind::Floats);
}
std::vector<std::string> strings_attribute(const Node& node, std::string_view name) {
  return attribute<std::vector<std::string>>(node, name, AttributeKind::Strings);
}

bool Node::is(std::string_view qualified_name) const {
  return op->is(qualified_name);
}

void fail(const Node& node, const std::string& message) {
  throw GraphError(node.where, fmt::format("node '{}' ({}): {}", node.name, node.op->qualified_name(), message));
}

const Op& Graph::op(std::string_view qualified_name) const {
  if (!registry) throw std::logic_error(fmt::format("graph '{}' has no operators: Graph::registry is not set", name));
  return registry->get(qualified_name);
}

std::string_view name_of(Stage stage) {
  static constexpr std::array<std::string_view, 3> names = {"forward", "backward", "update"};
  return names[size_t(stage)];
}

void erase_nodes(Graph& graph, const Table<NodeId, bool>& erased) {
  Table<NodeId, Node> kept;
  for (const NodeId n : graph.nodes.ids()) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output != kNone) graph.values[output].producer = erased[n] ? kNone : kept.end_id();
    }
    if (!erased[n]) kept.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(kept);
}

}  // namespace arbalest
