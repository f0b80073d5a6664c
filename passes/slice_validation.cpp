// SPDX-License-Identifier: Apache-2.0
#include "graph/constants.h"
#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// Drops the nodes that are not on the way to the metrics.
void keep_wanted(Graph& slice, const std::vector<ValueId>& metrics) {
  std::vector<bool> wanted(slice.values.size(), false);
  std::vector<int64_t> key(slice.nodes.size(), -1);
  for (const ValueId metric : metrics) wanted[size_t(metric)] = true;
  for (auto n = slice.nodes.size(); n-- > 0;) {
    bool needed = false;
    for (const ValueId output : slice.nodes[n].outputs) needed = needed || (output != kNone && wanted[size_t(output)]);
    if (!needed) continue;
    key[n] = int64_t(n);
    for (const ValueId input : slice.nodes[n].inputs) {
      if (input != kNone) wanted[size_t(input)] = true;
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
  for (size_t n = 0; n < slice.nodes.size(); ++n) {
    Node& node = slice.nodes[n];
    if (node.op->qualified_name() == "arbalest.Prefetch") {
      node.attributes.set("split", split);
      node.attributes.set("batch", batch);
    }
    if (node.op->for_inference) node.op->for_inference(slice, NodeId(n));
  }
  keep_wanted(slice, metrics);  // not Train, Validate and whatever only training needs
  for (size_t n = 0; n < slice.nodes.size(); ++n) infer(slice, NodeId(n));
  settle_choices(slice);
  keep_wanted(slice, metrics);  // not the conditions
  return slice;
}

}  // namespace arbalest
