// SPDX-License-Identifier: Apache-2.0

// Losses that a model's file spells out take logarithms of probabilities, which are 0 in float long before their
// logarithm is −∞. They are computed of the logits instead, as PyTorch's losses do.

#include "graph/constants.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class Logarithms {
 public:
  explicit Logarithms(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!rewriter_.is(n, op::Log)) continue;
      const ValueId probability = rewriter_.input(n);
      if (const NodeId shares = rewriter_.producer(probability, op::Softmax); shares != kNone) {
        rewriter_.become(n, op::LogSoftmax, {rewriter_.input(shares)}, {rewriter_.output(n)},
                         rewriter_.node(shares).attributes);
      } else if (const NodeId share = rewriter_.producer(probability, op::Sigmoid); share != kNone) {
        const ValueId x = rewriter_.input(share);
        of_softplus(n, rewriter_.add_before(n, op::Neg, rewriter_.node(n).name + ".of", {x}));
      } else if (const NodeId rest = rest_of_one(probability); rest != kNone) {
        of_softplus(n, rewriter_.input(rest));
      }
    }
    rewriter_.finish();
  }

 private:
  // The Sigmoid of which the value is 1 less; kNone: there is none.
  NodeId rest_of_one(ValueId value) const {
    const NodeId less = rewriter_.producer(value, op::Sub);
    if (less == kNone || number_of(graph_, rewriter_.input(less, BinaryInput::A)) != 1.0) return kNone;
    return rewriter_.producer(rewriter_.input(less, BinaryInput::B), op::Sigmoid);
  }

  // The node becomes −Softplus(x): log(1 − sigmoid(x)).
  void of_softplus(NodeId n, ValueId x) {
    const ValueId soft = rewriter_.add_before(n, op::Softplus, rewriter_.node(n).name + ".softplus", {x});
    rewriter_.become(n, op::Neg, {soft}, {rewriter_.output(n)}, {});
  }

  Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void fuse_logarithms(Graph& graph) {
  Logarithms(graph).run();
}

}  // namespace arbalest
