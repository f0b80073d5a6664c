// SPDX-License-Identifier: Apache-2.0
#include "passes/recompute.h"

#include <algorithm>

#include "passes/passes.h"

namespace arbalest {
Repetitions::Repetitions(const Graph& graph) : graph_(graph), first_reader_(graph.values.size(), kNone) {
  Table<ValueId, bool> outlives(graph.values.size(), false);  // the iteration, or it is a part of what does
  for (const ValueId v : outlives.ids()) {
    const Value& value = graph.values[v];
    outlives[v] = value.role != Role::Activation || value.view.base != kNone;
  }
  for (const Carry& carry : graph.carries) outlives[carry.next] = true;
  for (const ValueId output : graph.outputs) outlives[output] = true;
  for (const Node& node : graph.nodes) repetitions_.push_back(of_node(node, outlives));
  for (NodeId n = graph.nodes.end_id(); n-- > 0;) {
    if (graph.nodes[n].stage == Stage::Forward) continue;
    for (const ValueId input : graph.nodes[n].inputs) {
      if (input != kNone) first_reader_[input] = n;
    }
  }
}

Repetition Repetitions::of_node(const Node& node, const Table<ValueId, bool>& outlives) const {
  if (node.stage != Stage::Forward || node.op->side_effect || node.op->collective || node.op->prepare) return {};
  if (node.op->again) return node.op->again(graph_, node);
  if (node.op->random) return {};
  Repetition again{node.op, node.inputs, node.attributes, node.outputs, false};
  for (const ValueId output : node.outputs) {
    if (output != kNone && outlives[output]) return {};
  }
  for (const auto& [output, input] : node.op->aliases) {
    // Nothing that is computed anew each time is written over in the forward pass: one tensor is the other.
    if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
    if (graph_.values[node.inputs[size_t(input)]].role != Role::Activation) return {};
    again.view = true;
  }
  return again;
}

Table<NodeId, NodeId> Repetitions::places(const Table<NodeId, bool>& chosen) const {
  Table<ValueId, NodeId> before = first_reader_;
  Table<NodeId, NodeId> places(repetitions_.size(), kNone);
  const auto earlier = [](NodeId a, NodeId b) { return a == kNone ? b : b == kNone ? a : std::min(a, b); };
  for (NodeId n = repetitions_.end_id(); n-- > 0;) {
    const Repetition& again = repetitions_[n];
    if (!chosen[n] || !again.op) continue;
    for (const ValueId output : again.outputs) {
      if (output != kNone) places[n] = earlier(places[n], before[output]);
    }
    if (places[n] == kNone) continue;
    for (const ValueId input : again.inputs) {
      if (input != kNone) before[input] = earlier(before[input], places[n]);
    }
  }
  return places;
}

void recompute(Graph& graph, const Table<NodeId, bool>& chosen) {
  const Repetitions repetitions(graph);
  const Table<NodeId, NodeId> places = repetitions.places(chosen);
  Table<ValueId, ValueId> again(graph.values.size());  // what those after the forward pass read
  for (const ValueId value : again.ids()) again[value] = value;
  const auto read_again = [&](ValueId& value) { value = value == kNone ? kNone : again[value]; };

  Table<NodeId, int64_t> key(places.size());
  for (const NodeId n : places.ids()) key[n] = 2 * int64_t(n) + 1;
  for (const NodeId n : places.ids()) {
    if (places[n] == kNone) continue;
    const Repetition& of = repetitions.of(n);
    Node copy{of.op, graph.nodes[n].name + " again", of.inputs, {}, of.attributes, graph.nodes[n].where};
    copy.stage = Stage::Backward;
    for (ValueId& input : copy.inputs) read_again(input);
    for (const ValueId output : of.outputs) {
      const Value made = output == kNone ? Value{} : graph.values[output];
      copy.outputs.push_back(output == kNone ? kNone : graph.add_value(made.name + " again", made.type));
      if (output != kNone) again[output] = copy.outputs.back();
    }
    graph.nodes.push_back(std::move(copy));
    key.push_back(2 * int64_t(places[n]));
  }
  for (const NodeId n : places.ids()) {
    Node& node = graph.nodes[n];
    if (node.stage != Stage::Forward) std::for_each(node.inputs.begin(), node.inputs.end(), read_again);
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
