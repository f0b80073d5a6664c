#include <numeric>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {

void fuse_relu(Graph& graph) {
  const Op& fused = builtin_ops().get("arbalest.ConvRelu");
  const auto readers = graph.consumers();
  std::vector<int64_t> key(graph.nodes.size());
  std::iota(key.begin(), key.end(), int64_t{0});
  for (size_t r = 0; r < graph.nodes.size(); ++r) {
    const Node& relu = graph.nodes[r];
    if (relu.op->qualified_name() != "Relu") continue;
    const ValueId sum = relu.inputs[0], y = relu.outputs[0];
    const NodeId producer = graph.values[size_t(sum)].producer;
    if (producer == kNone || readers[size_t(sum)].size() != 1) continue;
    Node& node = graph.nodes[size_t(producer)];
    if (node.op->qualified_name() != "Conv") continue;
    node.op = &fused;
    node.outputs[0] = y;
    graph.values[size_t(y)].producer = producer;
    key[r] = -1;
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
