// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

std::vector<bool> live_nodes(const Graph& graph) {
  std::vector<bool> wanted(graph.values.size(), false), live(graph.nodes.size(), false);
  for (const ValueId output : graph.outputs) wanted[size_t(output)] = true;
  for (auto n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    bool needed = node.op->side_effect;
    for (const ValueId output : node.outputs) {
      // Writing into a part of what is wanted (a gradient in its arena) is needed too.
      needed =
          needed || (output != kNone && (wanted[size_t(output)] || wanted[size_t(storage_of(graph, output).base)]));
    }
    if (!needed) continue;
    live[n] = true;
    for (const ValueId input : node.inputs) {
      if (input != kNone) wanted[size_t(input)] = true;
    }
  }
  return live;
}

// A value stays when a node, an output, a carry of something that stays, or a view of something that stays names it.
std::vector<bool> live_values(const Graph& graph, const std::vector<ValueId*>& keep) {
  std::vector<bool> live(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (const ValueId v : node.inputs) {
      if (v != kNone) live[size_t(v)] = true;
    }
    for (const ValueId v : node.outputs) {
      if (v != kNone) live[size_t(v)] = true;
    }
  }
  for (const ValueId v : graph.outputs) live[size_t(v)] = true;
  for (const ValueId* v : keep) {
    if (*v != kNone) live[size_t(*v)] = true;
  }
  // Parameters, states and constants in an arena that stays: they start it and are saved from it, though in bfloat16
  // no node reads the master weights.
  for (size_t v = 0; v < live.size(); ++v) {
    const Value& value = graph.values[v];
    const bool stored = value.role != Role::Activation && value.role != Role::Input;
    if (stored && value.view.base != kNone && live[size_t(value.view.base)]) live[v] = true;
  }
  for (size_t v = 0; v < live.size(); ++v) {
    if (live[v]) live[size_t(storage_of(graph, ValueId(v)).base)] = true;
  }
  return live;
}

}  // namespace

void remove_dead(Graph& graph, ArenaValues& arenas) {
  const std::vector<bool> live = live_nodes(graph);
  std::vector<int64_t> key(graph.nodes.size());
  for (size_t n = 0; n < key.size(); ++n) key[n] = live[n] ? int64_t(n) : -1;
  reorder_nodes(graph, key);

  const auto keep = arenas.all();
  const std::vector<bool> used = live_values(graph, keep);
  std::vector<ValueId> renumbered(graph.values.size(), kNone);
  std::vector<Value> values;
  for (size_t v = 0; v < used.size(); ++v) {
    if (!used[v]) continue;
    renumbered[v] = ValueId(values.size());
    values.push_back(std::move(graph.values[v]));
  }
  const auto renumber = [&](ValueId& v) { v = v == kNone ? kNone : renumbered[size_t(v)]; };
  for (Value& value : values) renumber(value.view.base);
  for (Node& node : graph.nodes) {
    std::for_each(node.inputs.begin(), node.inputs.end(), renumber);
    std::for_each(node.outputs.begin(), node.outputs.end(), renumber);
  }
  std::for_each(graph.outputs.begin(), graph.outputs.end(), renumber);
  std::erase_if(graph.inputs, [&](ValueId v) { return !used[size_t(v)]; });
  std::for_each(graph.inputs.begin(), graph.inputs.end(), renumber);
  std::erase_if(graph.carries, [&](const Carry& c) { return !used[size_t(c.current)] || !used[size_t(c.next)]; });
  for (Carry& carry : graph.carries) {
    renumber(carry.current);
    renumber(carry.next);
  }
  for (ValueId* v : keep) renumber(*v);
  graph.set_values(std::move(values));
}

}  // namespace arbalest
