// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "graph/op.h"
#include "ops/nn/max_pool.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// Whether arbalest.MaxPoolTaps can stand for the MaxPool: of images, with taps that a byte can number, and without
// indices of its own.
bool can_keep(const Graph& graph, const Node& pool) {
  constexpr size_t kAxes = 4;  // of an image, at most
  constexpr int64_t kTaps = 255;
  const size_t indices = MaxPoolOutput::Indices;
  if (pool.outputs.size() > indices && pool.outputs[indices] != kNone) return false;
  if (graph.values[pool.input()].type.shape.size() > kAxes) return false;
  int64_t taps = 1;
  for (const int64_t extent : ints_attribute(pool, "kernel_shape")) {
    if (extent > kTaps) return false;
    taps *= extent;  // at most two of them
    if (taps > kTaps) return false;
  }
  return true;
}

class Keeping {
 public:
  explicit Keeping(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!rewriter_.is(n, op::MaxPoolGrad)) continue;
      const ValueId x = rewriter_.input(n, MaxPoolGradInput::X), y = rewriter_.input(n, MaxPoolGradInput::Y);
      const NodeId pool = rewriter_.producer(y, op::MaxPool);
      if (pool == kNone || !can_keep(graph_, rewriter_.node(pool))) continue;
      keep(pool, n);
      take_from_windows(n, x, y);
    }
    rewriter_.finish();
  }

 private:
  void keep(NodeId pool, NodeId gradient) {
    const Shape x = rewriter_.shape(rewriter_.input(gradient, MaxPoolGradInput::X));
    rewriter_.set_op(pool, op::MaxPoolTaps);
    rewriter_.set_outputs(pool, {rewriter_.output(pool)});
    const ValueId taps = rewriter_.add_output(pool, rewriter_.value(rewriter_.output(pool)).name + ".taps");
    rewriter_.set_op(gradient, op::MaxPoolTapsGrad);
    rewriter_.set_inputs(gradient, {rewriter_.input(gradient, MaxPoolGradInput::dY), taps});
    rewriter_.attributes(gradient).set("image", Shape(x.begin() + 2, x.end()));
  }

  // All of a window's gradient goes to one element of X, which is Y. So the sums for a bias are those over windows, and
  // the gradient of the Relu that made X may come first, by Y: both of images that are smaller by the stride's square,
  // and X is needed no more. Dilated windows may miss the image altogether: no sum has what flows back into these.
  void take_from_windows(NodeId pool, ValueId x, ValueId y) {
    const ValueId dy = rewriter_.input(pool, MaxPoolTapsGradInput::dY), dx = rewriter_.output(pool);
    const std::vector<int64_t> dilations = ints_attribute(rewriter_.node(pool), "dilations");
    const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t by) { return by != 1; });
    for (const NodeId reader : std::vector(rewriter_.readers(dx))) {
      if (rewriter_.is(reader, op::ChannelSum) && !dilated) rewriter_.set_input(reader, dy);
    }
    const NodeId relu = rewriter_.only_reader(dx);
    const bool masks = (rewriter_.is(relu, op::ReluGrad) || rewriter_.is(relu, op::ReluGradSums)) &&
                       rewriter_.input(relu, GradByOutput::dY) == dx && rewriter_.input(relu, GradByOutput::Y) == x;
    if (!masks) return;
    std::vector<ValueId> outputs = rewriter_.node(relu).outputs;
    const ValueId masked = rewriter_.output(relu);
    const ValueId windows = rewriter_.add_value(rewriter_.value(masked).name + ".windows", rewriter_.value(dy).type);
    outputs.front() = windows;
    rewriter_.set_inputs(relu, {dy, y});
    rewriter_.set_outputs(relu, std::move(outputs));
    rewriter_.set_input(pool, MaxPoolTapsGradInput::dY, windows);
    rewriter_.set_outputs(pool, {masked});
    rewriter_.move_before(relu, pool);
  }

  const Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void keep_maxima(Graph& graph) {
  Keeping(graph).run();
}

}  // namespace arbalest
