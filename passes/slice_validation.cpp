// SPDX-License-Identifier: Apache-2.0
#include "graph/constants.h"
#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// Drops the nodes that are not on the way to the metrics.
void keep_wanted(Graph& slice, const std::vector<ValueId>& metrics) {
  Table<ValueId, bool> wanted(slice.values.size(), false);
  Table<NodeId, int64_t> key(slice.nodes.size(), -1);
  for (const ValueId metric : metrics) wanted[metric] = true;
  for (NodeId n = slice.nodes.end_id(); n-- > 0;) {
    bool needed = false;
    for (const ValueId output : slice.nodes[n].outputs) needed = needed || (output != kNone && wanted[output]);
    if (!needed) continue;
    key[n] = int64_t(n);
    for (const ValueId input : slice.nodes[n].inputs) {
      if (input != kNone) wanted[input] = true;
    }
  }
  reorder_nodes(slice, key);
}

}  // namespace

Graph slice_validation(const Graph& graph, const std::vector<ValueId>& metrics, const std::string& split,
                       int64_t batch) {
  Graph slice = graph;
  slice.name += "/validation";
  slice.carries.clear();
  slice.outputs = metrics;
  for (const NodeId n : slice.nodes.ids()) {
    Node& node = slice.nodes[n];
    if (node.is(op::Prefetch)) {
      node.attributes.set("split", split);
      node.attributes.set("batch", batch);
    }
    if (node.op->for_inference) node.op->for_inference(slice, n);
  }
  keep_wanted(slice, metrics);  // not Train, Validate and whatever only training needs
  for (const NodeId n : slice.nodes.ids()) infer(slice, n);
  settle_choices(slice);
  keep_wanted(slice, metrics);  // not the conditions
  return slice;
}

}  // namespace arbalest
