// SPDX-License-Identifier: Apache-2.0

// What forward makes of weights alone, such as weights that are standardised or scaled, is made some nodes before it is
// read. On GPUs its small kernels then run next to those of the layers before (nodes_aside() in the plan).

#include <algorithm>

#include "passes/passes.h"

namespace arbalest {

void advance_weights(Graph& graph) {
  // About four layers: launches that wait further ahead than 64 others are waited for (waits_for_aside() in the plan).
  constexpr int64_t kAhead = 48;
  const Table<ValueId, bool> of_weights = made_of_weights(graph);
  Table<NodeId, int64_t> key(graph.nodes.size());
  for (const NodeId n : key.ids()) {
    const Node& node = graph.nodes[n];
    const bool early =
        node.stage == Stage::Forward &&
        std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v == kNone || of_weights[v]; });
    key[n] = std::max<int64_t>(int64_t(n) - (early ? kAhead : 0), 0);
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
