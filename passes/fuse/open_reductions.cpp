// SPDX-License-Identifier: Apache-2.0

// Reductions next to elementwise operators, written as a sum of what elementwise operators make: ReduceL2 is
// √(Σ x · x). Regions make that sum together with x.

#include <array>

#include "passes/fuse/row_sums.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

struct OpenedReduction {
  std::string_view name;
  bool squares;   // its terms are x · x, else |x|
  bool has_root;  // it is the root of their sum
};
constexpr std::array kOpenedReductions = {
    OpenedReduction{"ReduceL1", false, false},
    OpenedReduction{"ReduceL2", true, true},
    OpenedReduction{"ReduceSumSquare", true, false},
};

// Whether a region can make what the node reduces, and its sum on the way.
bool joins_region(const Graph& graph, const Rewriter& rewriter, const Node& node) {
  const ValueId x = node.inputs[0];
  Node sum = node;
  sum.op = &graph.op("ReduceSum");
  const NodeId producer = rewriter.value(x).producer;
  return rewriter.is_elementwise(producer, rewriter.shape(x)) && rewriter.node(producer).stage == node.stage &&
         row_sum(graph, sum);
}

void open_reduction(Rewriter& rewriter, NodeId n, const OpenedReduction& reduction) {
  const Node node = rewriter.node(n);
  ValueId made = node.inputs[0];
  const auto add = [&](std::string_view op, std::string_view suffix, std::vector<ValueId> inputs,
                       Attributes attributes = {}) {
    made = rewriter.add_before(n, op, node.name + "." + std::string(suffix), std::move(inputs), std::move(attributes));
  };
  const auto cast = [&](DataType to, std::string_view suffix) {
    if (rewriter.value(made).type.dtype != to) add("Cast", suffix, {made}, {{"to", onnx_number(to)}});
  };
  cast(DataType::Float32, "x");
  if (reduction.squares) {
    add("Mul", "squares", {made, made});
  } else {
    add("Abs", "absolute", {made});
  }
  add("ReduceSum", "sum", {made}, node.attributes);
  if (reduction.has_root) add("Sqrt", "root", {made});
  cast(rewriter.value(node.outputs[0]).type.dtype, "y");
  rewriter.remove(n);
  rewriter.set_outputs(rewriter.value(made).producer, node.outputs);
}

}  // namespace

void open_reductions(Graph& graph) {
  Rewriter rewriter(graph);
  for (const NodeId n : rewriter.ids()) {
    for (const OpenedReduction& reduction : kOpenedReductions) {
      if (!rewriter.is(n, reduction.name) || !joins_region(graph, rewriter, rewriter.node(n))) continue;
      open_reduction(rewriter, n, reduction);
      break;
    }
  }
  rewriter.finish();
}

}  // namespace arbalest
