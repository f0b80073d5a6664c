// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "graph/constants.h"
#include "ops/norm/batch_norms.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class SampleFusion {
 public:
  explicit SampleFusion(Graph& graph) : graph_(graph), rewriter_(graph), of_weights_(made_of_weights(graph)) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::NormalizeSamples)) keep_shape(n);
      if (rewriter_.is(n, op::BatchNormTraining) || has_own_statistics(n)) open_weights(n);
    }
    rewriter_.finish();
    for (NodeId n = 0; changed_ && n < graph_.nodes.end_id(); ++n) infer(graph_, n);  // layouts
  }

 private:
  // Whether the node does the same to all elements of `value`, its input, whatever their shape of `rank` axes.
  bool treats_alike(NodeId id, ValueId value, size_t rank) const {
    const std::vector<ValueId>& inputs = rewriter_.node(id).inputs;
    return rewriter_.node(id).op->element && std::all_of(inputs.begin(), inputs.end(), [&](ValueId input) {
             if (input == value || input == kNone) return input == value;
             const TensorType& other = rewriter_.value(input).type;
             return other.elements() == 1 && other.shape.size() <= rank;
           });
  }

  // Whether the node makes the mean of each channel of x.
  bool is_mean_of_channels(NodeId id, ValueId x, bool keepdims) const {
    if (!rewriter_.is(id, op::ReduceMean) || rewriter_.input(id) != x) return false;
    std::vector<int64_t> others;
    for (size_t axis = 0; axis < rewriter_.shape(x).size(); ++axis) {
      if (axis != 1) others.push_back(int64_t(axis));
    }
    return rewriter_.reduced_axes(id) == others && flag_attribute(rewriter_.node(id), "keepdims") == keepdims;
  }

  // Whether the node is a batch norm by statistics that a file computes of what it normalises, as PyTorch's newer
  // exporter writes one in training without running statistics.
  bool has_own_statistics(NodeId id) const {
    using In = BatchNormInput;
    if (!rewriter_.is(id, op::BatchNormInference)) return false;
    const auto producer = [&](ValueId value) { return rewriter_.value(value).producer; };
    const ValueId x = rewriter_.input(id, In::X);
    const NodeId variance = producer(rewriter_.input(id, In::Variance));
    if (!is_mean_of_channels(producer(rewriter_.input(id, In::Mean)), x, false) || variance == kNone) return false;
    const NodeId square = rewriter_.producer(rewriter_.input(variance), op::Mul);
    if (square == kNone || !is_mean_of_channels(variance, rewriter_.output(square), false)) return false;
    const ValueId deviation = rewriter_.input(square, BinaryInput::A);
    const NodeId difference = rewriter_.producer(deviation, op::Sub);
    return deviation == rewriter_.input(square, BinaryInput::B) && difference != kNone &&
           rewriter_.input(difference, BinaryInput::A) == x &&
           is_mean_of_channels(producer(rewriter_.input(difference, BinaryInput::B)), x, true);
  }

  // A batch norm of weights (1, C, …) by their own statistics normalises rows, which lie as the weights do.
  void open_weights(NodeId id) {
    using In = BatchNormInput;
    const Node node = rewriter_.node(id);
    const ValueId x = node.inputs[In::X], y = node.output();
    const Shape shape = rewriter_.shape(x);
    const bool computed = rewriter_.value(node.inputs[In::Mean]).producer != kNone &&
                          rewriter_.value(node.inputs[In::Variance]).producer != kNone;
    const bool plain = node.inputs.size() == In::Residual && int_attribute(node, "relu") == 0;
    if (!computed || !plain || !of_weights_[x] || shape.size() < 3 || shape[0] != 1) return;
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone && !rewriter_.readers(node.outputs[i]).empty()) return;
    }
    const std::string name = rewriter_.value(y).name;
    const auto add = [&](std::string_view op, const char* label, std::vector<ValueId> inputs,
                         Attributes attributes = {}) {
      return rewriter_.add_before(id, op, name + label, std::move(inputs), std::move(attributes));
    };
    const auto row = [&](size_t input, const char* label) {
      return add(op::Reshape, label, {node.inputs[input]}, {{"shape", Shape{shape[1], 1}}});
    };
    ValueId rows = add(op::Reshape, ".rows", {x}, {{"shape", Shape{shape[1], -1}}});
    rows = add(op::Normalize, ".normalized", {rows},
               {{"axis", int64_t{1}}, {"epsilon", float_attribute(node, "epsilon")}});
    rows = add(op::Mul, ".scaled", {rows, row(In::Scale, ".scale")});
    const auto bias = content_of(graph_, node.inputs[In::Bias]);
    const bool shifts = !bias || std::any_of(bias->begin(), bias->end(), [](std::byte b) { return b != std::byte{0}; });
    if (shifts) rows = add(op::Add, ".shifted", {rows, row(In::Bias, ".bias")});
    rewriter_.become(id, op::Reshape, {rows}, {y}, {{"shape", shape}});
  }

  void keep_shape(NodeId id) {
    const ValueId rows = rewriter_.input(id);
    const NodeId before = rewriter_.producer(rows, op::Reshape);
    if (before == kNone || rewriter_.only_reader(rows) == kNone) return;
    const ValueId samples = rewriter_.input(before);
    const Shape shape = rewriter_.shape(samples);
    if (shape.size() < 2 || shape[0] != rewriter_.shape(rows)[0]) return;
    std::vector<NodeId> nodes = {id};
    ValueId made = rewriter_.output(id);
    NodeId next = rewriter_.only_reader(made);
    while (next != kNone && treats_alike(next, made, shape.size())) {
      nodes.push_back(next);
      made = rewriter_.output(next);
      next = rewriter_.only_reader(made);
    }
    if (next == kNone || !rewriter_.is(next, op::Reshape) || rewriter_.input(next) != made) return;
    const ValueId back = rewriter_.output(next);
    if (rewriter_.shape(back) != shape) return;
    rewriter_.set_input(id, samples);
    for (const NodeId node : nodes) rewriter_.infer(node);
    rewriter_.replace_uses(back, made);
    rewriter_.remove(before);
    rewriter_.remove(next);
    changed_ = true;
  }

  Graph& graph_;
  Rewriter rewriter_;
  const Table<ValueId, bool> of_weights_;
  bool changed_ = false;
};

}  // namespace

void fuse_samples(Graph& graph) {
  SampleFusion(graph).run();
}

}  // namespace arbalest
