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

  // The products among the terms, those together that one product replaces. Other terms are left in `others`.
  std::vector<std::vector<NodeId>> groups_of(const std::vector<ValueId>& terms, std::vector<ValueId>& others) const {
    std::vector<std::vector<NodeId>> groups;
    for (const ValueId term : terms) {
      const NodeId product = product_of(term);
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<NodeId>& each) {
        return product != kNone && are_alike(product, each[0]);
      });
      if (product == kNone) {
        others.push_back(term);
      } else if (group == groups.end()) {
        groups.push_back({product});
      } else {
        group->push_back(product);
      }
    }
    std::erase_if(groups, [&](const std::vector<NodeId>& group) {
      if (group.size() > 1 && pays(group)) return false;
      for (const NodeId n : group) others.push_back(rewriter_.node(n).outputs[0]);
      return true;
    });
    return groups;
  }

  void join(NodeId sum) {
    std::vector<ValueId> terms, left;
    std::vector<NodeId> sums;
    find_terms(sum, terms, sums);
    const std::vector<std::vector<NodeId>> groups = groups_of(terms, left);
    if (groups.empty()) return;
    const bool whole = groups.size() == 1 && left.empty();
    const std::vector<ValueId> result = rewriter_.node(sum).outputs;
    const std::string name = rewriter_.value(result[0]).name;
    for (const NodeId n : sums) rewriter_.remove(n);
    for (const std::vector<NodeId>& group : groups) {
      std::vector<ValueId> inputs = {rows(sum, group, 0), rows(sum, group, 1)};
      const Node first = rewriter_.node(group[0]);
      for (const NodeId n : group) rewriter_.remove(n);
      if (whole) return rewriter_.become(sum, "arbalest.GemmGradB", std::move(inputs), result, first.attributes);
      left.push_back(
          rewriter_.add_before(sum, "arbalest.GemmGradB", name + ".joined", std::move(inputs), first.attributes));
    }
    ValueId all = left[0];
    for (size_t i = 1; i + 1 < left.size(); ++i) all = rewriter_.add_before(sum, "Add", name + ".sum", {all, left[i]});
    rewriter_.become(sum, "Add", {all, left.back()}, result, {});
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_weight_gradients(Graph& graph) {
  WeightGradientFusion(graph).run();
}

}  // namespace arbalest
