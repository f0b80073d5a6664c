// SPDX-License-Identifier: Apache-2.0
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {

void fuse_relu(Graph& graph) {
  Rewriter rewriter(graph);
  for (const NodeId relu : rewriter.ids()) {
    if (!rewriter.is(relu, "Relu")) continue;
    const ValueId sum = rewriter.input(relu, 0), y = rewriter.node(relu).outputs[0];
    const NodeId conv = rewriter.producer(sum, "Conv");
    if (conv == kNone || rewriter.only_reader(sum) != relu) continue;
    rewriter.remove(relu);
    rewriter.set_op(conv, "arbalest.ConvRelu");
    rewriter.set_outputs(conv, {y});
  }
  rewriter.finish();
}

}  // namespace arbalest
