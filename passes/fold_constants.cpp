// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "graph/constants.h"
#include "passes/passes.h"

namespace arbalest {

void fold_constants(Graph& graph) {
  Table<NodeId, int64_t> key(graph.nodes.size());
  for (const NodeId n : graph.nodes.ids()) {
    Node& node = graph.nodes[n];
    bool known = !node.outputs.empty();
    for (const ValueId output : node.outputs) {
      known = known && (output == kNone || graph.values[output].content);
    }
    key[n] = known ? -1 : int64_t(n);
    if (!known) {
      take_operands(graph, node);
      continue;
    }
    for (const ValueId output : node.outputs) {
      if (output == kNone) continue;
      Value& value = graph.values[output];
      value.role = Role::Constant;
      value.producer = kNone;
      value.initializer = {Initializer::Kind::Data, 0, std::move(value.content)};
      value.content = nullptr;
    }
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
