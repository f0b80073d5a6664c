// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

Table<NodeId, bool> live_nodes(const Graph& graph) {
  Table<ValueId, bool> wanted(graph.values.size(), false);
  Table<NodeId, bool> live(graph.nodes.size(), false);
  for (const ValueId output : graph.outputs) wanted[output] = true;
  for (NodeId n = graph.nodes.end_id(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    bool needed = node.op->side_effect;
    for (const ValueId output : node.outputs) {
      // Writing into a part of what is wanted (a gradient in its arena) is needed too.
      needed = needed || (output != kNone && (wanted[output] || wanted[storage_of(graph, output).base]));
    }
    if (!needed) continue;
    live[n] = true;
    for (const ValueId input : node.inputs) {
      if (input != kNone) wanted[input] = true;
    }
  }
  return live;
}

// A value stays when a node, an output, a carry of something that stays, or a view of something that stays names it.
Table<ValueId, bool> live_values(const Graph& graph, const std::vector<ValueId*>& keep) {
  Table<ValueId, bool> live(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId v : node.inputs) {
      if (v != kNone) live[v] = true;
    }
    for (const ValueId v : node.outputs) {
      if (v != kNone) live[v] = true;
    }
  }
  for (const ValueId v : graph.outputs) live[v] = true;
  for (const ValueId* v : keep) {
    if (*v != kNone) live[*v] = true;
  }
  // Parameters, states and constants in an arena that stays: they start it and are saved from it, though in bfloat16
  // no node reads the master weights.
  for (const ValueId v : live.ids()) {
    const Value& value = graph.values[v];
    const bool stored = value.role != Role::Activation && value.role != Role::Input;
    if (stored && value.view.base != kNone && live[value.view.base]) live[v] = true;
  }
  for (const ValueId v : live.ids()) {
    if (live[v]) live[storage_of(graph, v).base] = true;
  }
  return live;
}

}  // namespace

void remove_dead(Graph& graph, ArenaValues& arenas) {
  const Table<NodeId, bool> live = live_nodes(graph);
  Table<NodeId, int64_t> key(graph.nodes.size());
  for (const NodeId n : key.ids()) key[n] = live[n] ? int64_t(n) : -1;
  reorder_nodes(graph, key);

  const auto keep = arenas.all();
  const Table<ValueId, bool> used = live_values(graph, keep);
  Table<ValueId, ValueId> renumbered(graph.values.size(), kNone);
  Table<ValueId, Value> values;
  for (const ValueId v : used.ids()) {
    if (!used[v]) continue;
    renumbered[v] = values.push_back(std::move(graph.values[v]));
  }
  const auto renumber = [&](ValueId& v) { v = v == kNone ? kNone : renumbered[v]; };
  for (Value& value : values) renumber(value.view.base);
  for (Node& node : graph.nodes) {
    std::for_each(node.inputs.begin(), node.inputs.end(), renumber);
    std::for_each(node.outputs.begin(), node.outputs.end(), renumber);
  }
  std::for_each(graph.outputs.begin(), graph.outputs.end(), renumber);
  std::erase_if(graph.inputs, [&](ValueId v) { return !used[v]; });
  std::for_each(graph.inputs.begin(), graph.inputs.end(), renumber);
  std::erase_if(graph.carries, [&](const Carry& c) { return !used[c.current] || !used[c.next]; });
  for (Carry& carry : graph.carries) {
    renumber(carry.current);
    renumber(carry.next);
  }
  for (ValueId* v : keep) renumber(*v);
  graph.set_values(std::move(values));
}

}  // namespace arbalest
