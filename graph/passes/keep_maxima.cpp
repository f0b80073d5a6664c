#include <algorithm>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// Whether arbalest.MaxPoolTaps can stand for the MaxPool: of images, with taps that a byte can number, and without
// indices of its own.
bool can_keep(const Graph& graph, const Node& pool) {
  constexpr size_t kAxes = 4;  // of an image, at most
  constexpr int64_t kTaps = 255;
  if (pool.op->qualified_name() != "MaxPool" || (pool.outputs.size() > 1 && pool.outputs[1] != kNone)) return false;
  if (graph.values[size_t(pool.inputs[0])].type.shape.size() > kAxes) return false;
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
  explicit Keeping(Graph& graph) : graph_(graph), readers_(graph.consumers()), key_(graph.nodes.size()) {
    for (size_t n = 0; n < key_.size(); ++n) key_[n] = 2 * int64_t(n);
  }

  void run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op->qualified_name() != "arbalest.MaxPoolGrad") continue;
      const NodeId pool = graph_.values[size_t(graph_.nodes[n].inputs[2])].producer;
      if (pool == kNone || !can_keep(graph_, graph_.nodes[size_t(pool)])) continue;
      const ValueId x = graph_.nodes[n].inputs[1], y = graph_.nodes[n].inputs[2];
      keep(graph_.nodes[size_t(pool)], graph_.nodes[n]);
      take_from_windows(NodeId(n), x, y);
    }
    reorder_nodes(graph_, key_);
  }

 private:
  void keep(Node& pool, Node& gradient) {
    const Value y = graph_.values[size_t(pool.outputs[0])];
    TensorType type = y.type;
    type.dtype = DataType::Uint8;
    const ValueId taps = graph_.add_value(y.name + ".taps", type);
    graph_.values[size_t(taps)].producer = y.producer;
    pool.op = &builtin_ops().get("arbalest.MaxPoolTaps");
    pool.outputs.resize(1);
    pool.outputs.push_back(taps);
    const Shape& x = graph_.values[size_t(gradient.inputs[1])].type.shape;
    gradient.op = &builtin_ops().get("arbalest.MaxPoolTapsGrad");
    gradient.inputs = {gradient.inputs[0], taps};
    gradient.attributes.set("image", Shape(x.begin() + 2, x.end()));
  }

  // All of a window's gradient goes to one element of X, which is Y. So the sums for a bias are those over windows, and
  // the gradient of the Relu that made X may come first, by Y. Both are of images that are smaller by the stride's
  // square, and X is needed no more. Dilated windows may miss the image altogether: no sum has what flows back into
  // these.
  void take_from_windows(NodeId id, ValueId x, ValueId y) {
    Node& gradient = graph_.nodes[size_t(id)];
    const ValueId dy = gradient.inputs[0], dx = gradient.outputs[0];
    const std::vector<int64_t> dilations = ints_attribute(gradient, "dilations");
    const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t by) { return by != 1; });
    std::vector<NodeId> others;
    for (const NodeId reader : readers_[size_t(dx)]) {
      Node& node = graph_.nodes[size_t(reader)];
      if (node.op->qualified_name() == "arbalest.ChannelSum" && !dilated) {
        node.inputs[0] = dy;
      } else {
        others.push_back(reader);
      }
    }
    if (others.size() != 1) return;
    Node& relu = graph_.nodes[size_t(others[0])];
    const std::string op = relu.op->qualified_name();
    const bool masks = (op == "arbalest.ReluGrad" || op == "arbalest.ReluGradSums") && relu.inputs[0] == dx;
    if (!masks || relu.inputs[1] != x) return;
    const ValueId masked = relu.outputs[0];
    const ValueId windows =
        graph_.add_value(graph_.values[size_t(masked)].name + ".windows", graph_.values[size_t(dy)].type);
    relu.inputs = {dy, y};
    relu.outputs[0] = windows;
    gradient.inputs[0] = windows;
    gradient.outputs[0] = masked;
    graph_.values[size_t(windows)].producer = others[0];
    graph_.values[size_t(masked)].producer = id;
    graph_.values[size_t(dx)].producer = kNone;
    key_[size_t(others[0])] = key_[size_t(id)] - 1;
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;  // as they were before
  std::vector<int64_t> key_;
};

}  // namespace

void keep_maxima(Graph& graph) {
  Keeping(graph).run();
}

}  // namespace arbalest
