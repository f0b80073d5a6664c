#include <algorithm>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

bool reads_the_same(const Node& accuracy, const Node& loss) {
  return accuracy.op->qualified_name() == "arbalest.Accuracy" && int_attribute(accuracy, "top_k") == 1 &&
         ints_attribute(accuracy, "ignore_index") == ints_attribute(loss, "ignore_index") &&
         std::equal(accuracy.inputs.begin(), accuracy.inputs.end(), loss.inputs.begin());  // class weights may follow
}

bool is_used(const Graph& graph, ValueId value) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
  });
}

}  // namespace

ValueId fuse_accuracy(Graph& graph, ValueId loss, const std::vector<ValueId>& among) {
  const NodeId producer = graph.values[size_t(loss)].producer;
  if (producer == kNone || graph.nodes[size_t(producer)].op->qualified_name() != "arbalest.SoftmaxCrossEntropy") {
    return kNone;
  }
  if (graph.nodes[size_t(producer)].outputs.size() > 1) return kNone;  // the graph's own
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!reads_the_same(graph.nodes[n], graph.nodes[size_t(producer)])) continue;
    const ValueId accuracy = graph.nodes[n].outputs[0];
    const bool wanted = std::find(among.begin(), among.end(), accuracy) != among.end();
    if (!wanted || is_used(graph, accuracy)) continue;
    graph.nodes[size_t(producer)].outputs.push_back(accuracy);
    std::vector<int64_t> order(graph.nodes.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i == n ? -1 : int64_t(i);
    reorder_nodes(graph, order);
    return accuracy;
  }
  return kNone;
}

}  // namespace arbalest
