// SPDX-License-Identifier: Apache-2.0

// Products of rows and one matrix whose sums with a bias are Gemm's: exporters write MatMul and Add for layers of more
// than two axes, and a product adds a bias where it makes the rows.

#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class BiasFusion {
 public:
  BiasFusion(Graph& graph, const std::vector<ValueId>& asked) : rewriter_(graph, asked) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!rewriter_.is(n, op::Add)) continue;
      for (const auto& [made, bias] : both_orders(rewriter_.node(n))) {
        if (take_in(n, made, bias)) break;
      }
    }
    rewriter_.finish();
  }

 private:
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }

  // The product of rows and a matrix that makes the value for nothing but the sum; kNone: another node does.
  NodeId product_of(ValueId value) const {
    const NodeId plain = rewriter_.producer(value, op::MatMul);
    const NodeId id = plain != kNone ? plain : rewriter_.producer(value, op::BatchMatMul);
    if (id == kNone || rewriter_.only_reader(value) == kNone) return kNone;
    const Node& node = rewriter_.node(id);
    const bool rows = shape(node.input(BinaryInput::A)).size() >= 2 && shape(node.input(BinaryInput::B)).size() == 2;
    return rows && (plain != kNone || int_attribute(node, "transA") == 0) ? id : kNone;
  }

  static bool is_row(const Shape& bias, int64_t columns) { return bias == Shape{columns} || bias == Shape{1, columns}; }

  bool take_in(NodeId sum, ValueId made, ValueId bias) {
    const NodeId product = product_of(made);
    if (product == kNone || !is_row(shape(bias), shape(made).back())) return false;
    const Node& node = rewriter_.node(product);
    const Attributes how = {{"transB", rewriter_.is(product, op::MatMul) ? int64_t{0} : int_attribute(node, "transB")}};
    const ValueId x = node.input(BinaryInput::A), w = node.input(BinaryInput::B), y = rewriter_.output(sum);
    const Shape rows = shape(x), result = shape(made);
    rewriter_.remove(product);
    if (rows.size() == 2) {
      rewriter_.become(sum, op::Gemm, {x, w, bias}, {y}, how);
      return true;
    }
    const std::string name = rewriter_.value(made).name;
    const int64_t count = element_count({rows.begin(), rows.end() - 1});
    const ValueId matrix = rewriter_.add_before(sum, op::Reshape, name + ".rows", {x},
                                                {{"shape", Shape{count, rows.back()}}, {"allowzero", int64_t{1}}});
    const ValueId gemm = rewriter_.add_before(sum, op::Gemm, name + ".gemm", {matrix, w, bias}, how);
    rewriter_.become(sum, op::Reshape, {gemm}, {y}, {{"shape", result}, {"allowzero", int64_t{1}}});
    return true;
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_biases(Graph& graph, const std::vector<ValueId>& asked) {
  BiasFusion(graph, asked).run();
}

}  // namespace arbalest
