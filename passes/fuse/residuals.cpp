// SPDX-License-Identifier: Apache-2.0

// Sums of a tensor and what a product of matrices, or the gradient of a norm, makes of its shape, as around a block's
// residual: the product, or the gradient, adds the tensor where it writes its rows. Sums next to elementwise operators
// stay, since a region adds them for nothing.

#include <algorithm>

#include "ops/norm/layer_norm.h"
#include "ops/product/gemm.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class ResidualFusion {
 public:
  explicit ResidualFusion(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!rewriter_.is(n, op::Add)) continue;
      for (const auto& [made, other] : both_orders(rewriter_.node(n))) {
        if (take_in(n, made, other)) break;
      }
    }
    rewriter_.finish();
  }

 private:
  const TensorType& type(ValueId value) const { return rewriter_.value(value).type; }

  // The product that makes the value, for nothing but the sum, with nothing but reshapes between.
  NodeId product_of(ValueId value) const {
    while (rewriter_.only_reader(value) != kNone && rewriter_.value(value).view.base == kNone) {
      const NodeId product = rewriter_.producer(value, op::Gemm);
      if (product != kNone) return product;
      const NodeId reshape = rewriter_.producer(value, op::Reshape);
      if (reshape == kNone || type(value).layout != Layout::RowMajor) return kNone;
      value = rewriter_.input(reshape);
      if (type(value).layout != Layout::RowMajor) return kNone;
    }
    return kNone;
  }

  // Sums themselves may be taken in as well.
  bool is_elementwise(NodeId n, const Shape& shape) const {
    return !rewriter_.is(n, op::Add) && rewriter_.is_elementwise(n, shape);
  }

  bool take_in(NodeId sum, ValueId made, ValueId other) {
    const ValueId y = rewriter_.output(sum);
    if (made == other || type(made) != type(y) || type(other) != type(y) || type(y).layout != Layout::RowMajor) {
      return false;
    }
    const Shape& shape = rewriter_.shape(y);
    const std::vector<NodeId>& readers = rewriter_.readers(y);
    const bool joins = is_elementwise(rewriter_.value(other).producer, shape) ||
                       std::any_of(readers.begin(), readers.end(), [&](NodeId n) { return is_elementwise(n, shape); });
    return !joins && (add_in_gradient(sum, made, other) || add_in_product(sum, made, other));
  }

  // dX of a norm whose gradient has no summand so far. The norm's gradient takes the place of the sum, so nothing may
  // read its other results before that.
  bool add_in_gradient(NodeId sum, ValueId made, ValueId other) {
    using In = NormalizeGradInput;
    const NodeId norm = rewriter_.producer(made, op::NormalizeGrad);
    if (norm == kNone || rewriter_.only_reader(made) != sum || rewriter_.value(made).view.base != kNone) return false;
    const Node gradient = rewriter_.node(norm);
    if (gradient.outputs[NormalizeGradOutput::dX] != made || rewriter_.input(norm, In::Summand) != kNone) return false;
    const auto is_read_early = [&](ValueId output) {
      if (output == kNone || output == made) return false;
      const std::vector<NodeId>& readers = rewriter_.readers(output);
      return std::any_of(readers.begin(), readers.end(), [&](NodeId n) { return n != kNone && n < sum; });
    };
    if (std::any_of(gradient.outputs.begin(), gradient.outputs.end(), is_read_early)) return false;
    std::vector<ValueId> inputs = gradient.inputs, outputs = gradient.outputs;
    inputs.resize(In::Summand + 1, kNone);
    inputs[In::Summand] = other;
    outputs[NormalizeGradOutput::dX] = rewriter_.output(sum);
    rewriter_.remove(norm);
    rewriter_.become(sum, op::NormalizeGrad, std::move(inputs), std::move(outputs), gradient.attributes);
    return true;
  }

  bool add_in_product(NodeId sum, ValueId made, ValueId other) {
    const Node node = rewriter_.node(sum);
    const NodeId product = product_of(made);
    if (product == kNone || rewriter_.node(product).stage != node.stage) return false;
    const Node gemm = rewriter_.node(product);
    const Shape shape = rewriter_.shape(node.output()), rows = rewriter_.shape(gemm.output());
    const auto to = [](const Shape& shape) { return Attributes{{"shape", shape}, {"allowzero", int64_t{1}}}; };
    ValueId summand = other;
    if (shape != rows) summand = rewriter_.add_before(sum, op::Reshape, node.name + ".summand", {other}, to(rows));
    const std::vector<ValueId> inputs = {gemm.input(GemmInput::A), gemm.input(GemmInput::B), gemm.input(GemmInput::C),
                                         summand};
    if (shape == rows) {
      rewriter_.become(sum, op::GemmSum, inputs, node.outputs, gemm.attributes);
    } else {
      const ValueId added = rewriter_.add_before(sum, op::GemmSum, node.name + ".gemm", inputs, gemm.attributes);
      rewriter_.become(sum, op::Reshape, {added}, node.outputs, to(shape));
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
