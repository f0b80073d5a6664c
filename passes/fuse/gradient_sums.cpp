// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "ops/norm/batch_norms.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class GradientSumFusion {
 public:
  explicit GradientSumFusion(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::BatchNormGrad)) read_both(n);
      if (rewriter_.is(n, op::Add)) add_in_place(n);
    }
    rewriter_.finish();
  }

 private:
  const Value& value(ValueId id) const { return rewriter_.value(id); }

  // Whether the sum is of two tensors of its type, and no part of another value.
  bool is_plain_sum(NodeId add) const {
    const Value& sum = value(rewriter_.output(add));
    const std::vector<ValueId>& terms = rewriter_.node(add).inputs;
    return sum.view.base == kNone &&
           std::all_of(terms.begin(), terms.end(), [&](ValueId term) { return value(term).type == sum.type; });
  }

  // A sum that only the batch norm's gradient reads becomes that one's dY and dY2.
  void read_both(NodeId norm) {
    if (rewriter_.node(norm).inputs.size() > BatchNormGradInput::Second) return;
    const ValueId gradient = rewriter_.input(norm, BatchNormGradInput::dY);
    const NodeId add = rewriter_.producer(gradient, op::Add);
    if (add == kNone || !is_plain_sum(add) || rewriter_.only_reader(gradient) == kNone) return;
    const auto [a, b] = both_orders(rewriter_.node(add)).front();
    rewriter_.remove(add);
    rewriter_.set_input(norm, BatchNormGradInput::dY, a);
    rewriter_.set_input(norm, BatchNormGradInput::Second, b);
  }

  // Which of the parts of a BatchNormPartsGrad the value is the gradient of, without an addend so far.
  std::optional<size_t> part_of(ValueId gradient) const {
    const NodeId producer = rewriter_.producer(gradient, op::BatchNormPartsGrad);
    if (producer == kNone) return {};
    const Node& norm = rewriter_.node(producer);
    for (size_t i = 0; i < gradient_parts(norm.inputs.size()); ++i) {
      if (norm.outputs[part_gradient(i)] == gradient && norm.inputs[gradient_addend(i)] == kNone) return i;
    }
    return {};
  }

  // Whether the value is computed anew each time, in memory of its own that nothing reads but one node.
  bool may_be_written_to(ValueId id) const {
    const NodeId producer = value(id).producer;
    if (value(id).role != Role::Activation || value(id).view.base != kNone || producer == kNone ||
        rewriter_.only_reader(id) == kNone) {
      return false;
    }
    // Its addend, if it has one, was found writable already.
    if (rewriter_.is(producer, op::BatchNormPartsGrad)) return true;
    const Node& node = rewriter_.node(producer);
    return std::none_of(node.op->aliases.begin(), node.op->aliases.end(), [&](const std::pair<int, int>& alias) {
      return size_t(alias.first) < node.outputs.size() && node.outputs[size_t(alias.first)] == id;
    });
  }

  // Lets a BatchNormPartsGrad add its gradient of a part in place to another gradient of that part that is available
  // before it.
  void add_in_place(NodeId add) {
    if (!is_plain_sum(add)) return;
    const ValueId sum = rewriter_.output(add);
    for (const auto& [own, other] : both_orders(rewriter_.node(add))) {
      const std::optional<size_t> part = part_of(own);
      if (!part || rewriter_.only_reader(own) == kNone || !may_be_written_to(other)) continue;
      const NodeId norm = value(own).producer;
      if (value(other).producer >= norm) continue;
      rewriter_.remove(add);
      rewriter_.set_input(norm, gradient_addend(*part), other);
      std::vector<ValueId> outputs = rewriter_.node(norm).outputs;
      outputs[part_gradient(*part)] = sum;
      rewriter_.set_outputs(norm, std::move(outputs));
      return;
    }
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_gradient_sums(Graph& graph) {
  GradientSumFusion(graph).run();
}

}  // namespace arbalest
