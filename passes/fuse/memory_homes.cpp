// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/memory_homes.h"

#include <algorithm>

namespace arbalest {

bool is_view(const Node& node) {
  if (node.op->aliases != std::vector<std::pair<int, int>>{{0, 0}}) return false;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    const OperandSpec* spec = node.op->input_spec(i);
    if (node.inputs[i] != kNone && !(spec && spec->constant)) return false;
  }
  return true;
}

MemoryHomes::MemoryHomes(const Graph& graph) : home_(graph.values.size()) {
  for (const ValueId v : home_.ids()) home_[v] = storage_of(graph, v).base;
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    for (const auto& [output, input] : node.op->aliases) {
      if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
      const ValueId to = node.outputs[size_t(output)], from = node.inputs[size_t(input)];
      if (to == kNone || from == kNone) continue;
      home_[to] = home_[from];
      if (!is_view(node)) writers_[home_[to]].push_back(n);
    }
  }
}

bool MemoryHomes::is_whole_until(ValueId value, NodeId producer, NodeId last) const {
  const std::vector<NodeId>& all = writers(value);
  return std::none_of(all.begin(), all.end(), [&](NodeId n) { return n > producer && n <= last; });
}

const std::vector<NodeId>& MemoryHomes::writers(ValueId value) const {
  static const std::vector<NodeId> none;
  const auto found = writers_.find(home(value));
  return found == writers_.end() ? none : found->second;
}

}  // namespace arbalest
