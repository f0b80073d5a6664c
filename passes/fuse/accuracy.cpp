// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

bool reads_the_same(const Graph& graph, const Node& accuracy, const Node& loss) {
  const auto same = [&](ValueId a, ValueId b) { return computes_the_same(graph, a, b); };
  return accuracy.is(op::Accuracy) && int_attribute(accuracy, "top_k") == 1 &&
         ints_attribute(accuracy, "ignore_index") == ints_attribute(loss, "ignore_index") &&
         std::equal(accuracy.inputs.begin(), accuracy.inputs.end(), loss.inputs.begin(),
                    same);  // class weights may follow
}

}  // namespace

ValueId fuse_accuracy(Graph& graph, ValueId loss, const std::vector<ValueId>& among) {
  Rewriter rewriter(graph);
  const NodeId producer = rewriter.producer(loss, op::SoftmaxCrossEntropy);
  if (producer == kNone || rewriter.node(producer).outputs.size() > 1) return kNone;  // the graph's own
  for (const NodeId n : rewriter.ids()) {
    if (!reads_the_same(graph, rewriter.node(n), rewriter.node(producer))) continue;
    const ValueId accuracy = rewriter.output(n);
    const bool wanted = std::find(among.begin(), among.end(), accuracy) != among.end();
    if (!wanted || !rewriter.readers(accuracy).empty()) continue;
    rewriter.remove(n);
    rewriter.set_outputs(producer, {loss, accuracy});
    rewriter.finish();
    return accuracy;
  }
  return kNone;
}

}  // namespace arbalest
