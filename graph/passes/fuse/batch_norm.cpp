#include <numeric>

#include "graph/op.h"
#include "graph/passes/batch_norms.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// The batch norm that alone computes `value` for one reader and has nothing fused into it yet; kNone otherwise.
NodeId fusible(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, ValueId value) {
  const NodeId producer = graph.values[size_t(value)].producer;
  if (producer == kNone || readers[size_t(value)].size() != 1) return kNone;
  const Node& node = graph.nodes[size_t(producer)];
  const std::string op = node.op->qualified_name();
  const bool plain = (op == "arbalest.BatchNormTraining" || op == "arbalest.BatchNormInference") &&
                     node.outputs[0] == value && node.inputs.size() <= norm_operand::kResidual &&
                     int_attribute(node, "relu") == 0;
  return plain ? producer : kNone;
}

}  // namespace

void fuse_batch_norm(Graph& graph) {
  const auto readers = graph.consumers();
  std::vector<int64_t> key(graph.nodes.size());
  std::iota(key.begin(), key.end(), int64_t{0});
  for (size_t r = 0; r < graph.nodes.size(); ++r) {
    if (graph.nodes[r].op->qualified_name() != "Relu") continue;
    const ValueId sum = graph.nodes[r].inputs[0];
    NodeId norm = fusible(graph, readers, sum);
    const NodeId add = graph.values[size_t(sum)].producer;
    if (norm == kNone && add != kNone && readers[size_t(sum)].size() == 1 &&
        graph.nodes[size_t(add)].op->qualified_name() == "Add") {
      const auto operands = graph.nodes[size_t(add)].inputs;
      const auto shape_of = [&](ValueId value) { return graph.values[size_t(value)].type.shape; };
      if (shape_of(operands[0]) != shape_of(operands[1])) continue;  // batch norm's residual does not broadcast
      const NodeId left = fusible(graph, readers, operands[0]), right = fusible(graph, readers, operands[1]);
      norm = std::max(left, right);  // the later of two: the other's output is there by then
      if (norm == kNone) continue;
      graph.nodes[size_t(norm)].inputs.push_back(operands[norm == left ? 1 : 0]);
      key[size_t(norm)] = key[size_t(add)];  // if both operands are known
      key[size_t(add)] = -1;
    }
    if (norm == kNone) continue;
    graph.nodes[size_t(norm)].attributes.set("relu", int64_t{1});
    graph.nodes[size_t(norm)].outputs[0] = graph.nodes[r].outputs[0];
    key[r] = -1;
    graph.values[size_t(graph.nodes[r].outputs[0])].producer = norm;
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
