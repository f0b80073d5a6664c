// SPDX-License-Identifier: Apache-2.0

// The gradient of a matrix that many products read, as the steps of a recurrent layer do: one product of all their rows
// in place of a sum of products. And the gradient of a bias that they read: one sum of all their rows.

#include <algorithm>
#include <map>
#include <vector>

#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class WeightGradientFusion {
 public:
  explicit WeightGradientFusion(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (is_sum(n) && !is_term(rewriter_.output(n))) join(n);
    }
    rewriter_.finish();
  }

 private:
  // Whether the node adds two matrices, or two vectors, of its result's type.
  bool is_sum(NodeId n) const {
    if (!rewriter_.is(n, op::Add)) return false;
    const auto type = [&](ValueId v) { return rewriter_.value(v).type; };
    const std::vector<ValueId>& terms = rewriter_.node(n).inputs;
    const TensorType sum = type(rewriter_.output(n));
    const bool is_known = sum.shape.size() == 1 || sum.shape.size() == 2;
    return is_known && type(terms[0]) == sum && type(terms[1]) == sum;
  }

  // Whether the value is made for nothing but a sum.
  bool is_term(ValueId value) const {
    return rewriter_.value(value).view.base == kNone && is_sum(rewriter_.only_reader(value, op::Add));
  }

  // Splits the sum into its terms and the sums between.
  void find_terms(NodeId sum, std::vector<ValueId>& terms, std::vector<NodeId>& sums) const {
    std::vector<ValueId> left(rewriter_.node(sum).inputs.rbegin(), rewriter_.node(sum).inputs.rend());
    while (!left.empty()) {
      const ValueId term = left.back();
      left.pop_back();
      const NodeId inner = rewriter_.producer(term, op::Add);
      if (inner == kNone || !is_sum(inner) || !is_term(term)) {
        terms.push_back(term);
        continue;
      }
      sums.push_back(inner);
      left.insert(left.end(), rewriter_.node(inner).inputs.rbegin(), rewriter_.node(inner).inputs.rend());
    }
  }

  // The product of rows, or the sum over rows, that makes the term; kNone: another node does.
  NodeId maker_of(ValueId term) const {
    if (!is_term(term)) return kNone;
    const NodeId product = rewriter_.producer(term, op::GemmGradB);
    if (product != kNone) return int_attribute(rewriter_.node(product), "transA") == 0 ? product : kNone;
    const NodeId sum = rewriter_.producer(term, op::ChannelSum);
    return sum != kNone && rewriter_.shape(rewriter_.input(sum)).size() == 2 ? sum : kNone;
  }

  bool are_alike(NodeId a, NodeId b) const {
    const Node &one = rewriter_.node(a), &other = rewriter_.node(b);
    if (one.op != other.op) return false;
    if (one.is(op::ChannelSum)) return float_attribute(one, "scale") == float_attribute(other, "scale");
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
    const int64_t sum = element_count(rewriter_.shape(rewriter_.output(products[0])));
    return copied <= int64_t(products.size() - 1) * (4 * sum + kNode);
  }

  // All rows of an operand of the products, or sums, one after the other.
  ValueId rows(NodeId sum, const std::vector<NodeId>& products, size_t input) {
    std::vector<ValueId> parts;
    for (const NodeId n : products) parts.push_back(rewriter_.node(n).inputs[input]);
    const auto known = rows_.find(parts);
    if (known != rows_.end()) return known->second;
    const std::string name = rewriter_.value(parts[0]).name + ".rows";
    return rows_[parts] = rewriter_.add_before(sum, op::Concat, name, parts, {{"axis", int64_t{0}}});
  }

  // The products and sums among the terms, those together that one replaces. Other terms are left in `others`.
  std::vector<std::vector<NodeId>> groups_of(const std::vector<ValueId>& terms, std::vector<ValueId>& others) const {
    std::vector<std::vector<NodeId>> groups;
    for (const ValueId term : terms) {
      const NodeId product = maker_of(term);
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
      for (const NodeId n : group) others.push_back(rewriter_.output(n));
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
      const Node first = rewriter_.node(group[0]);
      const std::string op = first.op->qualified_name();
      std::vector<ValueId> inputs;
      for (size_t i = 0; i < first.inputs.size(); ++i) inputs.push_back(rows(sum, group, i));
      for (const NodeId n : group) rewriter_.remove(n);
      if (whole) return rewriter_.become(sum, op, std::move(inputs), result, first.attributes);
      left.push_back(rewriter_.add_before(sum, op, name + ".joined", std::move(inputs), first.attributes));
    }
    ValueId all = left[0];
    for (size_t i = 1; i + 1 < left.size(); ++i)
      all = rewriter_.add_before(sum, op::Add, name + ".sum", {all, left[i]});
    rewriter_.become(sum, op::Add, {all, left.back()}, result, {});
  }

  Rewriter rewriter_;
  std::map<std::vector<ValueId>, ValueId> rows_;  // of operands, which products and sums share
};

}  // namespace

void fuse_weight_gradients(Graph& graph) {
  WeightGradientFusion(graph).run();
}

}  // namespace arbalest
