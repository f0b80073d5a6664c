// SPDX-License-Identifier: Apache-2.0
#include "passes/recompute.h"

#include <algorithm>

#include "passes/passes.h"

namespace arbalest {
Repetitions::Repetitions(const Graph& graph) : graph_(graph), first_reader_(graph.values.size(), kNone) {
  std::vector<bool> outlives(graph.values.size(), false);  // the iteration, or it is a part of what does
  for (size_t v = 0; v < outlives.size(); ++v) {
    const Value& value = graph.values[v];
    outlives[v] = value.role != Role::Activation || value.view.base != kNone;
  }
  for (const Carry& carry : graph.carries) outlives[size_t(carry.next)] = true;
  for (const ValueId output : graph.outputs) outlives[size_t(output)] = true;
  for (const Node& node : graph.nodes) repetitions_.push_back(of_node(node, outlives));
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (graph.nodes[n].stage == Stage::Forward) continue;
    for (const ValueId input : graph.nodes[n].inputs) {
      if (input != kNone) first_reader_[size_t(input)] = NodeId(n);
    }
  }
}

Repetition Repetitions::of_node(const Node& node, const std::vector<bool>& outlives) const {
  if (node.stage != Stage::Forward || node.op->side_effect || node.op->collective || node.op->prepare) return {};
  if (node.op->again) return node.op->again(graph_, node);
  if (node.op->random) return {};
  Repetition again{node.op, node.inputs, node.attributes, node.outputs, false};
  for (const ValueId output : node.outputs) {
    if (output != kNone && outlives[size_t(output)]) return {};
  }
  for (const auto& [output, input] : node.op->aliases) {
    // Nothing that is computed anew each time is written over in the forward pass: one tensor is the other.
    if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
    if (graph_.values[size_t(node.inputs[size_t(input)])].role != Role::Activation) return {};
    again.view = true;
  }
  return again;
}

std::vector<NodeId> Repetitions::places(const std::vector<bool>& chosen) const {
  std::vector<NodeId> before = first_reader_, places(repetitions_.size(), kNone);
  const auto earlier = [](NodeId a, NodeId b) { return a == kNone ? b : b == kNone ? a : std::min(a, b); };
  for (size_t n = repetitions_.size(); n-- > 0;) {
    const Repetition& again = repetitions_[n];
    if (!chosen[n] || !again.op) continue;
    for (const ValueId output : again.outputs) {
      if (output != kNone) places[n] = earlier(places[n], before[size_t(output)]);
    }
    if (places[n] == kNone) continue;
    for (const ValueId input : again.inputs) {
      if (input != kNone) before[size_t(input)] = earlier(before[size_t(input)], places[n]);
    }
  }
  return places;
}

void recompute(Graph& graph, const std::vector<bool>& chosen) {
  const Repetitions repetitions(graph);
  const std::vector<NodeId> places = repetitions.places(chosen);
  const size_t count = graph.nodes.size();
  std::vector<ValueId> again(graph.values.size());  // what those after the forward pass read
  for (size_t v = 0; v < again.size(); ++v) again[v] = ValueId(v);
  const auto read_again = [&](ValueId& value) { value = value == kNone ? kNone : again[size_t(value)]; };

  std::vector<int64_t> key(count);
  for (size_t n = 0; n < count; ++n) key[n] = 2 * int64_t(n) + 1;
  for (size_t n = 0; n < count; ++n) {
    if (places[n] == kNone) continue;
    const Repetition& of = repetitions.of(NodeId(n));
    Node copy{of.op, graph.nodes[n].name + " again", of.inputs, {}, of.attributes, graph.nodes[n].where};
    copy.stage = Stage::Backward;
    for (ValueId& input : copy.inputs) read_again(input);
    for (const ValueId output : of.outputs) {
      const Value made = output == kNone ? Value{} : graph.values[size_t(output)];
      copy.outputs.push_back(output == kNone ? kNone : graph.add_value(made.name + " again", made.type));
      if (output != kNone) again[size_t(output)] = copy.outputs.back();
    }
    graph.nodes.push_back(std::move(copy));
    key.push_back(2 * int64_t(places[n]));
  }
  for (size_t n = 0; n < count; ++n) {
    Node& node = graph.nodes[n];
    if (node.stage != Stage::Forward) std::for_each(node.inputs.begin(), node.inputs.end(), read_again);
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
