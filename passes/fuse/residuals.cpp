// SPDX-License-Identifier: Apache-2.0

// Sums of a product of matrices and a tensor of its shape, as around a block's residual, become one product that adds
// the tensor where it writes its rows. Those next to elementwise operators stay, since a region adds them for nothing.

#include <algorithm>

#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class ResidualFusion {
 public:
  explicit ResidualFusion(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (NodeId n = 0; n < rewriter_.count(); ++n) {
      if (rewriter_.is(n, "Add") && rewriter_.node(n).inputs.size() == 2) take_in(n, 0) || take_in(n, 1);
    }
    rewriter_.finish();
  }

 private:
  const TensorType& type(ValueId value) const { return rewriter_.value(value).type; }

  // The product that makes the value, for nothing but the sum, with nothing but reshapes between.
  NodeId product_of(ValueId value) const {
    while (rewriter_.only_reader(value) != kNone && rewriter_.value(value).view.base == kNone) {
      const NodeId product = rewriter_.producer(value, "Gemm");
      if (product != kNone) return product;
      const NodeId reshape = rewriter_.producer(value, "Reshape");
      if (reshape == kNone || type(value).layout != Layout::RowMajor) return kNone;
      value = rewriter_.node(reshape).inputs[0];
      if (type(value).layout != Layout::RowMajor) return kNone;
    }
    return kNone;
  }

  bool is_elementwise(NodeId n, const Shape& shape) const {
    if (n == kNone) return false;
    const Node& node = rewriter_.node(n);
    return node.op->element.has_value() && !node.outputs.empty() && rewriter_.shape(node.outputs[0]) == shape;
  }

  bool take_in(NodeId sum, size_t operand) {
    const Node node = rewriter_.node(sum);
    const ValueId made = node.inputs[operand], other = node.inputs[1 - operand], y = node.outputs[0];
    if (made == other || type(made) != type(y) || type(other) != type(y) || type(y).layout != Layout::RowMajor) {
      return false;
    }
    const NodeId product = product_of(made);
    if (product == kNone || rewriter_.node(product).stage != node.stage) return false;
    const Shape& shape = rewriter_.shape(y);
    const std::vector<NodeId>& readers = rewriter_.readers(y);
    const bool joins = is_elementwise(rewriter_.value(other).producer, shape) ||
                       std::any_of(readers.begin(), readers.end(), [&](NodeId n) { return is_elementwise(n, shape); });
    if (joins) return false;
    const Node gemm = rewriter_.node(product);
    const Shape rows = rewriter_.shape(gemm.outputs[0]);
    const auto reshape = [&](ValueId value, const char* suffix) {
      return rewriter_.add_before(sum, "Reshape", node.name + suffix, {value},
                                  {{"shape", rows}, {"allowzero", int64_t{1}}});
    };
    const ValueId summand = shape == rows ? other : reshape(other, ".summand");
    const std::vector<ValueId> inputs = {gemm.inputs[0], gemm.inputs[1],
                                         gemm.inputs.size() > 2 ? gemm.inputs[2] : kNone, summand};
    if (shape == rows) {
      rewriter_.become(sum, "arbalest.GemmSum", inputs, {y}, gemm.attributes);
    } else {
      const ValueId added = rewriter_.add_before(sum, "arbalest.GemmSum", node.name + ".gemm", inputs, gemm.attributes);
      rewriter_.become(sum, "Reshape", {added}, {y}, {{"shape", shape}, {"allowzero", int64_t{1}}});
    }
    return true;
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_residuals(Graph& graph) {
  ResidualFusion(graph).run();
}

}  // namespace arbalest
