// SPDX-License-Identifier: Apache-2.0
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {

void fuse_relu(Graph& graph) {
  Rewriter rewriter(graph);
  for (const NodeId relu : rewriter.ids()) {
    if (!rewriter.is(relu, op::Relu)) continue;
    const ValueId sum = rewriter.input(relu), y = rewriter.output(relu);
    const NodeId conv = rewriter.producer(sum, op::Conv);
    if (conv == kNone || rewriter.only_reader(sum) != relu) continue;
    rewriter.remove(relu);
    rewriter.set_op(conv, op::ConvRelu);
    rewriter.set_outputs(conv, {y});
  }
  rewriter.finish();
}

}  // namespace arbalest
