// SPDX-License-Identifier: Apache-2.0
#include "passes/rewriter.h"

#include <algorithm>
#include <utility>

#include "graph/constants.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

constexpr int64_t kApart = 4;  // keys of neighbours: nodes are added before and after each

}  // namespace

void reorder_nodes(Graph& graph, const Table<NodeId, int64_t>& key) {
  std::vector<NodeId> order;
  for (const NodeId n : graph.nodes.ids()) order.push_back(n);
  std::stable_sort(order.begin(), order.end(), [&](NodeId a, NodeId b) { return key[a] < key[b]; });
  Table<NodeId, Node> nodes;
  Table<NodeId, NodeId> places(graph.nodes.size(), kNone);
  for (const NodeId n : order) {
    if (key[n] < 0) continue;
    places[n] = nodes.end_id();
    nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
  for (CallAttribute& call : graph.calls) {
    for (CallAttribute::Taker& taker : call.takers) taker.node = places[taker.node];
    std::erase_if(call.takers, [](const CallAttribute::Taker& taker) { return taker.node == kNone; });
  }
  for (Value& value : graph.values) value.producer = kNone;
  for (const NodeId n : graph.nodes.ids()) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output != kNone) graph.values[output].producer = n;
    }
  }
}

Rewriter::Rewriter(Graph& graph, const std::vector<ValueId>& asked)
    : graph_(graph), count_(graph.nodes.end_id()), readers_(graph.consumers()), key_(graph.nodes.size()) {
  for (const NodeId n : key_.ids()) key_[n] = kApart * (int64_t(n) + 1);
  for (const ValueId output : graph.outputs) readers_[output].push_back(kNone);
  for (const Carry& carry : graph.carries) readers_[carry.next].push_back(kNone);
  for (const ValueId value : asked) {
    if (value != kNone) readers_[value].push_back(kNone);
  }
}

NodeId Rewriter::producer(ValueId value, std::string_view op) const {
  const NodeId id = value == kNone ? kNone : this->value(value).producer;
  return is(id, op) ? id : kNone;
}

bool Rewriter::is_elementwise(NodeId id, const Shape& result) const {
  return id != kNone && node(id).op->element.has_value() && output(id) != kNone && shape(output(id)) == result;
}

bool Rewriter::reshapes(NodeId id) const {
  return id != kNone && node(id).op->reshapes;
}

bool Rewriter::remove_unread(NodeId id, ValueId value) {
  if (!readers(value).empty()) return false;
  remove(id);
  return true;
}

std::optional<std::vector<int64_t>> Rewriter::reduced_axes(NodeId id) const {
  Node reduction = node(id);
  const auto operand = constant_operand(reduction, "axes");
  if (operand && !content_of(graph_, reduction.input(*operand))) return std::nullopt;
  take_operands(graph_, reduction);
  const size_t rank = shape(reduction.input()).size();
  std::vector<int64_t> axes = ints_attribute(reduction, "axes");
  for (int64_t& axis : axes) axis = int64_t(normalized_axis(axis, rank));
  std::sort(axes.begin(), axes.end());
  return axes;
}

NodeId Rewriter::only_reader(ValueId value) const {
  return readers(value).size() == 1 ? readers(value)[0] : kNone;
}

NodeId Rewriter::only_reader(ValueId value, std::string_view op) const {
  const NodeId id = only_reader(value);
  return is(id, op) ? id : kNone;
}

void Rewriter::grow() {
  readers_.resize(graph_.values.size());
}

void Rewriter::set_inputs(NodeId id, std::vector<ValueId> inputs) {
  grow();
  Node& node = graph_.nodes[id];
  for (const ValueId before : node.inputs) {
    if (before == kNone) continue;
    std::vector<NodeId>& readers = readers_[before];
    readers.erase(std::find(readers.begin(), readers.end(), id));
  }
  node.inputs = std::move(inputs);
  for (const ValueId now : node.inputs) {
    if (now == kNone) continue;
    std::vector<NodeId>& readers = readers_[now];
    readers.insert(std::upper_bound(readers.begin(), readers.end(), id), id);
  }
}

void Rewriter::set_input(NodeId id, size_t i, ValueId value) {
  std::vector<ValueId> inputs = node(id).inputs;
  if (inputs.size() <= i) inputs.resize(i + 1, kNone);
  inputs[i] = value;
  set_inputs(id, std::move(inputs));
}

void Rewriter::replace_uses(ValueId from, ValueId to) {
  graph_.replace_uses(from, to);
  grow();
  std::vector<NodeId>& readers = readers_[to];
  readers.insert(readers.end(), readers_[from].begin(), readers_[from].end());
  std::sort(readers.begin(), readers.end());
  readers_[from].clear();
}

void Rewriter::replace_reads(ValueId from, ValueId to) {
  const std::vector<NodeId> readers = readers_[from];  // a copy: set_inputs() changes them
  for (const NodeId reader : readers) {
    if (reader == kNone) continue;
    std::vector<ValueId> inputs = node(reader).inputs;
    std::replace(inputs.begin(), inputs.end(), from, to);
    set_inputs(reader, std::move(inputs));
  }
}

void Rewriter::set_outputs(NodeId id, std::vector<ValueId> outputs) {
  Node& node = graph_.nodes[id];
  for (const ValueId before : node.outputs) {
    if (before != kNone && value(before).producer == id) graph_.values[before].producer = kNone;
  }
  node.outputs = std::move(outputs);
  for (const ValueId now : node.outputs) {
    if (now != kNone) graph_.values[now].producer = id;
  }
}

void Rewriter::become(NodeId id, std::string_view op, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                      Attributes attributes) {
  set_op(id, op);
  set_inputs(id, std::move(inputs));
  set_outputs(id, std::move(outputs));
  graph_.nodes[id].attributes = std::move(attributes);
  infer(id);
}

ValueId Rewriter::add_output(NodeId id, const std::string& name) {
  const ValueId output = graph_.add_value(name, {DataType::Token, {}});
  graph_.values[output].producer = id;
  graph_.nodes[id].outputs.push_back(output);
  grow();
  infer(id);
  return output;
}

ValueId Rewriter::add(NodeId at, int64_t behind, std::string_view op, std::string name, std::vector<ValueId> inputs,
                      Attributes attributes) {
  const NodeId id = graph_.add_node(graph_.op(op), std::move(name), {}, 1, std::move(attributes));
  graph_.nodes[id].stage = node(at).stage;
  graph_.nodes[id].where = node(at).where;
  key_.push_back(key_[at] + behind);
  set_inputs(id, std::move(inputs));
  infer(id);
  return node(id).output();
}

void Rewriter::remove(NodeId id) {
  set_inputs(id, {});
  set_outputs(id, {});
  key_[id] = -1;
}

void Rewriter::finish() {
  reorder_nodes(graph_, key_);
}

}  // namespace arbalest
