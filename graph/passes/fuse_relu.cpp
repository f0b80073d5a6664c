#include <numeric>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// Whether a Gemm adds nothing, or a row of numbers as it is: the bias of its columns.
bool adds_row(const Graph& graph, const Node& gemm) {
  if (gemm.inputs.size() < 3 || gemm.inputs[2] == kNone) return true;
  const Shape &c = graph.values[size_t(gemm.inputs[2])].type.shape,
              &y = graph.values[size_t(gemm.outputs[0])].type.shape;
  return !c.empty() && c.back() == y[1] && element_count(c) == y[1] && float_attribute(gemm, "beta") == 1;
}

// The operator that does the node's work and Relu behind it; nullptr where there is none.
const Op* with_relu(const Graph& graph, const Node& node) {
  const std::string op = node.op->qualified_name();
  if (op == "Conv") return &builtin_ops().get("arbalest.ConvRelu");
  if (op == "Gemm" && adds_row(graph, node)) return &builtin_ops().get("arbalest.GemmRelu");
  return nullptr;
}

}  // namespace

void fuse_relu(Graph& graph) {
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
    const Op* const fused = with_relu(graph, node);
    if (fused == nullptr) continue;
    node.op = fused;
    node.attributes.erase("beta");
    node.outputs[0] = y;
    graph.values[size_t(y)].producer = producer;
    key[r] = -1;
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
