#include "graph/passes/batch_norms.h"

#include <numeric>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// Positions of BatchNormGrad's operands, then of its output for the residual's gradient.
constexpr size_t kOfX = 1, kOfY = 2, kOfScale = 3, kOfMean = 4, kOfBias = 6, kOfSecond = 7, kOfPartials = 8;
constexpr size_t kResidualGradient = 3;

ValueId input_of(const Node& node, size_t i) {
  return i < node.inputs.size() ? node.inputs[i] : kNone;
}

class PairFusion {
 public:
  explicit PairFusion(Graph& graph) : graph_(graph), readers_(graph.consumers()), key_(graph.nodes.size()) {
    std::iota(key_.begin(), key_.end(), int64_t{0});
  }

  void run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (graph_.nodes[n].op->qualified_name() == "arbalest.BatchNormTraining") fuse(NodeId(n));
    }
    reorder_nodes(graph_, key_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {  // refuses what the operators do not take
      const std::string op = graph_.nodes[n].op->qualified_name();
      if (op == "arbalest.BatchNormPairTraining" || op == "arbalest.BatchNormPairGrad") infer(graph_, NodeId(n));
    }
  }

 private:
  const Node& node(NodeId id) const { return graph_.nodes[size_t(id)]; }
  const Value& value(ValueId id) const { return graph_.values[size_t(id)]; }

  // Whether `reader` is all that reads the value, which is no part of another.
  bool read_only_by(ValueId id, NodeId reader) const {
    return readers_[size_t(id)] == std::vector<NodeId>{reader} && value(id).view.base == kNone;
  }

  // The batch norm whose only use is the residual of `norm`; kNone if there is none.
  NodeId projection_of(NodeId norm) const {
    const ValueId residual = input_of(node(norm), norm_operand::kResidual);
    if (residual == kNone || int_attribute(node(norm), "relu") == 0 || !read_only_by(residual, norm)) return kNone;
    const NodeId producer = value(residual).producer;
    if (producer == kNone || node(producer).op != node(norm).op) return kNone;
    const bool plain = node(producer).outputs[0] == residual &&
                       input_of(node(producer), norm_operand::kResidual) == kNone &&
                       int_attribute(node(producer), "relu") == 0;
    const auto same = [&](auto attribute, const char* name) {
      return attribute(node(producer), name) == attribute(node(norm), name);
    };
    const bool alike =
        same(float_attribute, "epsilon") && same(float_attribute, "momentum") && same(int_attribute, "correction");
    return plain && alike && value(residual).type.shape.size() == 4 ? producer : kNone;
  }

  // The gradient of a batch norm, which is the only reader of its saved mean; kNone if there are other readers.
  NodeId gradient_of(NodeId norm) const {
    const ValueId mean = node(norm).outputs[norm_operand::kSavedMean];
    if (mean == kNone || readers_[size_t(mean)].empty()) return kNone;
    NodeId found = kNone;
    for (const NodeId reader : readers_[size_t(mean)]) {
      // A convolution that leaves sums for the gradient reads the mean too.
      if (node(reader).op->qualified_name() == "arbalest.ConvGradInputSums") continue;
      if (found != kNone || node(reader).op->qualified_name() != "arbalest.BatchNormGrad") return kNone;
      found = reader;
    }
    return found;
  }

  // Whether the gradient `second` is of what flows back through the Relu of the gradient `first`.
  bool is_behind_relu(NodeId first, NodeId second) const {
    const Node &one = node(first), &other = node(second);
    for (const size_t i : {kOfY, kOfBias, kOfSecond, kOfPartials}) {
      if (input_of(other, i) != kNone) return false;
    }
    if (one.outputs[0] == kNone || other.outputs[0] == kNone || other.outputs.size() > kResidualGradient) return false;
    if (input_of(one, kOfPartials) != kNone) return other.inputs[0] == one.inputs[0] && input_of(one, kOfBias) == kNone;
    return input_of(one, kOfY) != kNone && one.outputs.size() > kResidualGradient &&
           other.inputs[0] == one.outputs[kResidualGradient] && read_only_by(other.inputs[0], second);
  }

  void fuse(NodeId norm) {
    const NodeId projection = projection_of(norm);
    if (projection == kNone) return;
    const NodeId first = gradient_of(norm), second = gradient_of(projection);
    if (first == kNone || second == kNone || !is_behind_relu(first, second)) return;
    fuse_training(norm, projection);
    fuse_gradient(first, second);
  }

  void take_over(NodeId from, NodeId to) {
    for (const ValueId output : node(to).outputs) {
      if (output != kNone) graph_.values[size_t(output)].producer = to;
    }
    key_[size_t(from)] = -1;
  }

  void fuse_training(NodeId norm, NodeId projection) {
    const Node second = node(projection);
    Node& fused = graph_.nodes[size_t(norm)];
    const Node first = fused;
    fused.op = &builtin_ops().get("arbalest.BatchNormPairTraining");
    fused.inputs.assign(first.inputs.begin(), first.inputs.begin() + norm_operand::kResidual);
    fused.inputs.insert(fused.inputs.end(), second.inputs.begin(), second.inputs.begin() + norm_operand::kResidual);
    fused.outputs.insert(fused.outputs.end(), second.outputs.begin() + 1, second.outputs.end());
    fused.attributes = {};
    for (const char* name : {"epsilon", "momentum"}) fused.attributes.set(name, float_attribute(first, name));
    fused.attributes.set("correction", int_attribute(first, "correction"));
    for (const size_t of : {size_t{0}, size_t{1}}) {
      const Node& one = of == 0 ? first : second;
      fused.inputs.push_back(input_of(one, norm_operand::kPartials));
      fused.attributes.set(kPairChunkPixels[of], int_attribute(one, "chunk_pixels"));
    }
    graph_.values[size_t(second.outputs[0])].producer = kNone;
    take_over(projection, norm);
  }

  void fuse_gradient(NodeId first_id, NodeId second_id) {
    const Node first = node(first_id), second = node(second_id);
    const bool given = input_of(first, kOfPartials) != kNone;
    Node& fused = graph_.nodes[size_t(first_id)];
    fused.op = &builtin_ops().get("arbalest.BatchNormPairGrad");
    fused.inputs = {first.inputs[0], given ? kNone : first.inputs[kOfY], input_of(first, kOfSecond),
                    input_of(first, kOfPartials)};
    fused.outputs.clear();
    for (const Node* one : {&first, &second}) {
      fused.inputs.push_back(one->inputs[kOfX]);
      fused.inputs.insert(fused.inputs.end(), one->inputs.begin() + kOfScale, one->inputs.begin() + kOfBias);
      fused.outputs.insert(fused.outputs.end(), one->outputs.begin(), one->outputs.begin() + kResidualGradient);
    }
    fused.attributes = {{kPairChunkPixels[0], int_attribute(first, "chunk_pixels")}};
    if (given) fuse_sums(fused, second);
    if (!given) graph_.values[size_t(first.outputs[kResidualGradient])].producer = kNone;
    take_over(second_id, first_id);
  }

  // Lets the convolution gradient that leaves the first batch norm's sums leave the second's too, if its kernel can: it
  // must be pointwise and add two gradients.
  void fuse_sums(Node& fused, const Node& second) {
    const ValueId partials = fused.inputs[kPairGradPartials];
    const NodeId id = value(partials).producer;
    const Node& conv = node(id);
    const Shape& filter = value(conv.inputs[1]).type.shape;
    if (filter[2] != 1 || filter[3] != 1 || input_of(conv, kSumsY) == kNone || input_of(conv, kSumsSecond) == kNone) {
      return;
    }
    const ValueId added = graph_.add_value(value(partials).name + " of the second", value(partials).type);
    graph_.values[size_t(added)].producer = id;
    Node& sums = graph_.nodes[size_t(id)];
    sums.inputs.resize(kSumsX2, kNone);
    sums.inputs.insert(sums.inputs.end(), {second.inputs[kOfX], second.inputs[kOfMean]});
    sums.outputs.push_back(added);
    infer(graph_, id);
    fused.inputs.push_back(added);
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;  // as they were before
  std::vector<int64_t> key_;
};

}  // namespace

void fuse_batch_norm_pairs(Graph& graph) {
  PairFusion(graph).run();
}

}  // namespace arbalest
