// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/norm/batch_norms.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// The batch norm that alone computes `value` for one reader and has nothing fused into it yet; kNone otherwise.
NodeId fusible(const Rewriter& rewriter, ValueId value) {
  const NodeId id = rewriter.value(value).producer;
  if (id == kNone || rewriter.only_reader(value) == kNone) return kNone;
  const Node& node = rewriter.node(id);
  const bool plain = is_batch_norm(node) && node.output(BatchNormOutput::Y) == value &&
                     node.inputs.size() <= BatchNormInput::Residual && int_attribute(node, "relu") == 0;
  return plain ? id : kNone;
}

// Adds the other operand of the Add, which makes `sum`, to a batch norm that makes one of the two. Returns that batch
// norm; kNone: there is none that can take it.
NodeId take_residual(Rewriter& rewriter, ValueId sum) {
  const NodeId add = rewriter.producer(sum, op::Add);
  if (add == kNone || rewriter.only_reader(sum) == kNone) return kNone;
  const auto [a, b] = both_orders(rewriter.node(add)).front();
  if (rewriter.shape(a) != rewriter.shape(b)) return kNone;  // batch norm's residual does not broadcast
  const NodeId left = fusible(rewriter, a), right = fusible(rewriter, b);
  const NodeId norm = std::max(left, right);  // the later of two: the other's output is there by then
  if (norm == kNone) return kNone;
  rewriter.move_before(norm, add);  // where both operands are known
  rewriter.remove(add);
  rewriter.set_input(norm, BatchNormInput::Residual, norm == left ? b : a);
  return norm;
}

}  // namespace

void fuse_batch_norm(Graph& graph) {
  Rewriter rewriter(graph);
  for (const NodeId relu : rewriter.ids()) {
    if (!rewriter.is(relu, op::Relu)) continue;
    const ValueId sum = rewriter.input(relu), y = rewriter.output(relu);
    NodeId norm = fusible(rewriter, sum);
    if (norm == kNone) norm = take_residual(rewriter, sum);
    if (norm == kNone) continue;
    rewriter.attributes(norm).set("relu", int64_t{1});
    rewriter.remove(relu);
    std::vector<ValueId> outputs = rewriter.node(norm).outputs;
    outputs[BatchNormOutput::Y] = y;
    rewriter.set_outputs(norm, std::move(outputs));
  }
  rewriter.finish();
}

}  // namespace arbalest
