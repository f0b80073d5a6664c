// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/batch_norms.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

using In = BatchNormInput;
using GradIn = BatchNormGradInput;
using GradOut = BatchNormGradOutput;

class PairFusion {
 public:
  explicit PairFusion(Graph& graph) : rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::BatchNormTraining)) fuse(n);
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  ValueId input(NodeId id, size_t i) const { return rewriter_.input(id, i); }

  // Whether `reader` is all that reads the value, which is no part of another.
  bool read_only_by(ValueId id, NodeId reader) const {
    return rewriter_.only_reader(id) == reader && rewriter_.value(id).view.base == kNone;
  }

  // The batch norm whose only use is the residual of `norm`; kNone if there is none.
  NodeId projection_of(NodeId norm) const {
    const ValueId residual = input(norm, In::Residual);
    if (residual == kNone || int_attribute(node(norm), "relu") == 0 || !read_only_by(residual, norm)) return kNone;
    const NodeId producer = rewriter_.producer(residual, op::BatchNormTraining);
    if (producer == kNone) return kNone;
    const bool plain = rewriter_.output(producer, BatchNormOutput::Y) == residual &&
                       input(producer, In::Residual) == kNone && int_attribute(node(producer), "relu") == 0;
    const auto same = [&](auto attribute, const char* name) {
      return attribute(node(producer), name) == attribute(node(norm), name);
    };
    const bool alike =
        same(float_attribute, "epsilon") && same(float_attribute, "momentum") && same(int_attribute, "correction");
    return plain && alike && rewriter_.shape(residual).size() == 4 ? producer : kNone;
  }

  // The gradient of a batch norm, which is the only reader of its saved mean; kNone if there are other readers.
  NodeId gradient_of(NodeId norm) const {
    const ValueId mean = node(norm).outputs[BatchNormOutput::SavedMean];
    if (mean == kNone) return kNone;
    NodeId found = kNone;
    for (const NodeId reader : rewriter_.readers(mean)) {
      // A convolution that leaves sums for the gradient reads the mean too.
      if (rewriter_.is(reader, op::ConvGradInputSums)) continue;
      if (found != kNone || !rewriter_.is(reader, op::BatchNormGrad)) return kNone;
      found = reader;
    }
    return found;
  }

  // Whether the gradient `second` is of what flows back through the Relu of the gradient `first`.
  bool is_behind_relu(NodeId first, NodeId second) const {
    for (const size_t i : {GradIn::Y, GradIn::Bias, GradIn::Second, GradIn::Partials}) {
      if (input(second, i) != kNone) return false;
    }
    const Node &one = node(first), &other = node(second);
    if (one.output(GradOut::dX) == kNone || other.output(GradOut::dX) == kNone) return false;
    if (other.outputs.size() > GradOut::Residual) return false;
    if (input(first, GradIn::Partials) != kNone) {
      return input(second, GradIn::dY) == input(first, GradIn::dY) && input(first, GradIn::Bias) == kNone;
    }
    return input(first, GradIn::Y) != kNone && one.outputs.size() > GradOut::Residual &&
           input(second, GradIn::dY) == one.outputs[GradOut::Residual] &&
           read_only_by(input(second, GradIn::dY), second);
  }

  void fuse(NodeId norm) {
    const NodeId projection = projection_of(norm);
    if (projection == kNone) return;
    const NodeId first = gradient_of(norm), second = gradient_of(projection);
    if (first == kNone || second == kNone || !is_behind_relu(first, second)) return;
    fuse_training(norm, projection);
    fuse_gradient(first, second);
  }

  void fuse_training(NodeId norm, NodeId projection) {
    const Node first = node(norm), second = node(projection);
    rewriter_.remove(projection);
    std::vector<ValueId> inputs(first.inputs.begin(), first.inputs.begin() + In::Residual), outputs = first.outputs;
    inputs.insert(inputs.end(), second.inputs.begin(), second.inputs.begin() + In::Residual);
    outputs.insert(outputs.end(), second.outputs.begin() + 1, second.outputs.end());
    Attributes attributes;
    for (const char* name : {"epsilon", "momentum"}) attributes.set(name, float_attribute(first, name));
    attributes.set("correction", int_attribute(first, "correction"));
    for (const size_t of : {size_t{0}, size_t{1}}) {
      const Node& one = of == 0 ? first : second;
      inputs.push_back(In::Partials < one.inputs.size() ? one.inputs[In::Partials] : kNone);
      attributes.set(kPairChunkPixels[of], int_attribute(one, "chunk_pixels"));
    }
    rewriter_.become(norm, op::BatchNormPairTraining, std::move(inputs), std::move(outputs), std::move(attributes));
  }

  void fuse_gradient(NodeId first_id, NodeId second_id) {
    const Node first = node(first_id), second = node(second_id);
    const ValueId partials = input(first_id, GradIn::Partials);
    const bool given = partials != kNone;
    std::vector<ValueId> inputs = {first.inputs[GradIn::dY], given ? kNone : first.inputs[GradIn::Y],
                                   input(first_id, GradIn::Second), partials},
                         outputs;
    rewriter_.remove(second_id);
    for (const Node* one : {&first, &second}) {
      inputs.push_back(one->inputs[GradIn::X]);
      inputs.insert(inputs.end(), one->inputs.begin() + GradIn::Scale, one->inputs.begin() + GradIn::Bias);
      outputs.insert(outputs.end(), one->outputs.begin(), one->outputs.begin() + GradOut::Residual);
    }
    if (const ValueId added = given ? sums_of_both(partials, second) : kNone; added != kNone) inputs.push_back(added);
    rewriter_.become(first_id, op::BatchNormPairGrad, std::move(inputs), std::move(outputs),
                     {{kPairChunkPixels[0], int_attribute(first, "chunk_pixels")}});
  }

  // Lets the convolution gradient that leaves the first batch norm's sums leave the second's too, if its kernel can: it
  // must be pointwise and add two gradients. Returns those sums; kNone if it cannot.
  ValueId sums_of_both(ValueId partials, const Node& second) {
    const NodeId conv = rewriter_.value(partials).producer;
    const Shape& filter = rewriter_.shape(input(conv, ConvSumsInput::W));
    if (filter[2] != 1 || filter[3] != 1 || input(conv, ConvSumsInput::Y) == kNone ||
        input(conv, ConvSumsInput::Second) == kNone) {
      return kNone;
    }
    rewriter_.set_input(conv, ConvSumsInput::X2, second.inputs[GradIn::X]);
    rewriter_.set_input(conv, ConvSumsInput::SavedMean2, second.inputs[GradIn::SavedMean]);
    return rewriter_.add_output(conv, rewriter_.value(partials).name + " of the second");
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_batch_norm_pairs(Graph& graph) {
  PairFusion(graph).run();
}

}  // namespace arbalest
