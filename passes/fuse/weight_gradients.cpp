// SPDX-License-Identifier: Apache-2.0

// The gradient of a matrix that many products read, as the steps of a recurrent layer do: one product of all their rows
// in place of a sum of products.

#include <algorithm>
#include <vector>

#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class WeightGradientFusion {
 public:
  explicit WeightGradientFusion(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (NodeId n = 0; n < rewriter_.count(); ++n) {
      if (is_sum(n) && !is_term(rewriter_.node(n).outputs[0])) join(n);
    }
    rewriter_.finish();
  }

 private:
  // Whether the node adds two matrices of its result's type.
  bool is_sum(NodeId n) const {
    if (!rewriter_.is(n, "Add")) return false;
    const auto type = [&](ValueId v) { return rewriter_.value(v).type; };
    const std::vector<ValueId>& terms = rewriter_.node(n).inputs;
    const TensorType sum = type(rewriter_.node(n).outputs[0]);
    return sum.shape.size() == 2 && type(terms[0]) == sum && type(terms[1]) == sum;
  }

  // Whether the value is made for nothing but a sum.
  bool is_term(ValueId value) const {
    return rewriter_.value(value).view.base == kNone && is_sum(rewriter_.only_reader(value, "Add"));
  }

  // Splits the sum into its terms and the sums between.
  void find_terms(NodeId sum, std::vector<ValueId>& terms, std::vector<NodeId>& sums) const {
    std::vector<ValueId> left(rewriter_.node(sum).inputs.rbegin(), rewriter_.node(sum).inputs.rend());
    while (!left.empty()) {
      const ValueId term = left.back();
      left.pop_back();
      const NodeId inner = rewriter_.producer(term, "Add");
      if (inner == kNone || !is_sum(inner) || !is_term(term)) {
        terms.push_back(term);
        continue;
      }
      sums.push_back(inner);
      left.insert(left.end(), rewriter_.node(inner).inputs.rbegin(), rewriter_.node(inner).inputs.rend());
    }
  }

  // The product of rows that makes the term; kNone: another node does.
  NodeId product_of(ValueId term) const {
    const NodeId product = rewriter_.producer(term, "arbalest.GemmGradB");
    const bool joins = product != kNone && is_term(term) && int_attribute(rewriter_.node(product), "transA") == 0;
    return joins ? product : kNone;
  }

  bool are_alike(NodeId a, NodeId b) const {
    const Node &one = rewriter_.node(a), &other = rewriter_.node(b);
    return int_attribute(one, "transB") == int_attribute(other, "transB") &&
           float_attribute(one, "alpha") == float_attribute(other, "alpha");
  }

  // Copies of all rows against products and sums that are written and read again. A node is worth some elements, too.
  bool pays(const std::vector<NodeId>& products) const {
    constexpr int64_t kNode = int64_t{1} << 18;
    int64_t copied = 0;
    for (const NodeId n : products) {
      for (const ValueId input : rewriter_.node(n).inputs) copied += 2 * element_count(rewriter_.shape(input));
    }
    const int64_t sum = element_count(rewriter_.shape(rewriter_.node(products[0]).outputs[0]));
    return copied <= int64_t(products.size() - 1) * (4 * sum + kNode);
  }

  ValueId rows(NodeId sum, const std::vector<NodeId>& products, size_t input) {
    std::vector<ValueId> parts;
    for (const NodeId n : products) parts.push_back(rewriter_.node(n).inputs[input]);
    const std::string name = rewriter_.value(parts[0]).name + ".rows";
    return rewriter_.add_before(sum, "Concat", name, std::move(parts), {{"axis", int64_t{0}}});
  }

  void join(NodeId sum) {
    std::vector<ValueId> terms, others;
    std::vector<NodeId> sums, products;
    find_terms(sum, terms, sums);
    for (const ValueId term : terms) {
      const NodeId product = product_of(term);
      const bool alike = product != kNone && (products.empty() || are_alike(product, products[0]));
      if (alike) products.push_back(product);
      if (!alike) others.push_back(term);
    }
    if (products.size() < 2 || !pays(products)) return;
    const std::vector<ValueId> inputs = {rows(sum, products, 0), rows(sum, products, 1)};
    const Node first = rewriter_.node(products[0]), node = rewriter_.node(sum);
    const std::string name = rewriter_.value(node.outputs[0]).name;
    for (const NodeId n : products) rewriter_.remove(n);
    for (const NodeId n : sums) rewriter_.remove(n);
    if (others.empty()) {
      rewriter_.become(sum, first.op->qualified_name(), inputs, node.outputs, first.attributes);
      return;
    }
    ValueId all = rewriter_.add_before(sum, first.op->qualified_name(), name + ".joined", inputs, first.attributes);
    for (size_t i = 0; i + 1 < others.size(); ++i) {
      all = rewriter_.add_before(sum, "Add", name + ".sum", {all, others[i]});
    }
    rewriter_.become(sum, "Add", {all, others.back()}, node.outputs, {});
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_weight_gradients(Graph& graph) {
  WeightGradientFusion(graph).run();
}

}  // namespace arbalest
