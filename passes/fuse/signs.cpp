// SPDX-License-Identifier: Apache-2.0

// The gradient of Relu asks of what Relu makes whether it is above 0. So is a positive multiple of it: if that is kept
// for another kernel in any case, as a convolution's input is, the gradient reads that, and Relu's result is not kept.

#include <algorithm>

#include "graph/constants.h"
#include "passes/fuse/row_sums.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class Signs {
 public:
  explicit Signs(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!rewriter_.is(n, op::ReluGrad)) continue;
      const ValueId y = rewriter_.input(n, GradByOutput::Y);
      if (is_kept(y)) continue;
      const ValueId multiple = kept_multiple(y, 1);
      if (multiple != kNone) rewriter_.set_input(n, GradByOutput::Y, multiple);
    }
    rewriter_.finish();
  }

 private:
  // Whether a kernel of the backward pass that is no region's reads the value.
  bool is_kept(ValueId value) const {
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    return std::any_of(readers.begin(), readers.end(), [&](NodeId reader) {
      return reader != kNone && rewriter_.node(reader).stage == Stage::Backward &&
             !region_reads(graph_, rewriter_, reader, value);
    });
  }
  // A kept multiple of the value, which is `factor` times what Relu makes; kNone: there is none.
  ValueId kept_multiple(ValueId value, double factor) const {
    for (const NodeId reader : rewriter_.readers(value)) {
      if (reader == kNone || !rewriter_.is(reader, op::Mul) || rewriter_.node(reader).stage != Stage::Forward) continue;
      const ValueId made = rewriter_.output(reader);
      if (rewriter_.value(made).type != rewriter_.value(value).type) continue;
      const auto [a, b] = both_orders(rewriter_.node(reader)).front();
      const ValueId other = a == value ? b : a;
      const double all = factor * number_of(graph_, other).value_or(0);
      // The product may be 0 for numbers below 1e-34 only.
      constexpr double kLeast = 1e-3;
      if (!(all >= kLeast)) continue;
      if (is_kept(made)) return made;
      if (const ValueId further = kept_multiple(made, all); further != kNone) return further;
    }
    return kNone;
  }

  Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void read_kept_signs(Graph& graph) {
  Signs(graph).run();
}

}  // namespace arbalest
