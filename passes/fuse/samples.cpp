// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class SampleFusion {
 public:
  explicit SampleFusion(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (NodeId n = 0; n < rewriter_.count(); ++n) {
      if (rewriter_.is(n, "arbalest.NormalizeSamples")) keep_shape(n);
    }
    rewriter_.finish();
    for (NodeId n = 0; changed_ && n < NodeId(graph_.nodes.size()); ++n) infer(graph_, n);  // layouts
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

  void keep_shape(NodeId id) {
    const ValueId rows = rewriter_.input(id, 0);
    const NodeId before = rewriter_.producer(rows, "Reshape");
    if (before == kNone || rewriter_.only_reader(rows) == kNone) return;
    const ValueId samples = rewriter_.input(before, 0);
    const Shape shape = rewriter_.shape(samples);
    if (shape.size() < 2 || shape[0] != rewriter_.shape(rows)[0]) return;
    std::vector<NodeId> nodes = {id};
    ValueId made = rewriter_.node(id).outputs[0];
    NodeId next = rewriter_.only_reader(made);
    while (next != kNone && treats_alike(next, made, shape.size())) {
      nodes.push_back(next);
      made = rewriter_.node(next).outputs[0];
      next = rewriter_.only_reader(made);
    }
    if (next == kNone || !rewriter_.is(next, "Reshape") || rewriter_.input(next, 0) != made) return;
    const ValueId back = rewriter_.node(next).outputs[0];
    if (rewriter_.shape(back) != shape) return;
    rewriter_.set_input(id, 0, samples);
    for (const NodeId node : nodes) rewriter_.infer(node);
    rewriter_.replace_uses(back, made);
    rewriter_.remove(before);
    rewriter_.remove(next);
    changed_ = true;
  }

  Graph& graph_;
  Rewriter rewriter_;
  bool changed_ = false;
};

}  // namespace

void fuse_samples(Graph& graph) {
  SampleFusion(graph).run();
}

}  // namespace arbalest
