// SPDX-License-Identifier: Apache-2.0

// Norms written as what they are made of, so that regions join them with what is around.
//
// Batch norms next to elementwise operators. Training: y = (x − m) · i · s + b, where the batch's mean m and inverse
// deviation i come from BatchNormStatistics, and s and b are scale and bias. For M rows and x̂ = (x − m) · i, the
// gradient is db = Σ g, ds = Σ g · x̂ and dx = (g − db / M − x̂ · ds / M) · i · s. If Relu follows, g is 0 where y is
// not above 0.
//
// Norms of groups of channels. y = (x − m) · i, and dx = (g − mean(g) − x̂ · mean(g · x̂)) · i. Means are those of a
// sample's group: over pixels first, which a region sums, and then over channels.

#include <algorithm>
#include <map>
#include <set>

#include "ops/math/strided.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/group_norm.h"
#include "ops/norm/layer_norm.h"
#include "passes/fuse/row_sums.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// Adds nodes, one after the other, right before a node or right after it.
struct Writer {
  Rewriter& rewriter;
  NodeId at;
  bool after;
  std::string name = rewriter.node(at).name;

  ValueId operator()(std::string_view op, std::string_view suffix, std::vector<ValueId> inputs,
                     Attributes attributes = {}) {
    const auto add = after ? &Rewriter::add_after : &Rewriter::add_before;
    return (rewriter.*add)(at, op, name + "." + std::string(suffix), std::move(inputs), std::move(attributes));
  }
  ValueId in_float(ValueId value, std::string_view suffix) {
    if (rewriter.value(value).type.dtype != DataType::Bfloat16) return value;
    return (*this)(op::Cast, suffix, {value}, {{"to", onnx_number(DataType::Float32)}});
  }
};

class BatchNorms {
 public:
  explicit BatchNorms(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::BatchNormTraining)) open_training(n);
      if (rewriter_.is(n, op::BatchNormGrad)) open_gradient(n);
    }
    rewriter_.finish();
  }

 private:
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  using GradIn = BatchNormGradInput;
  using GradOut = BatchNormGradOutput;

  // An image or rows, channels innermost.
  bool is_normalised(ValueId x) const {
    const TensorType& type = rewriter_.value(x).type;
    const bool number = type.dtype == DataType::Float32 || type.dtype == DataType::Bfloat16;
    return innermost_axis(type) == 1 && number && type.shape[1] > 1 && type.elements() > 0;
  }

  // Numbers of channels as operands of an image: one view for forward and backward, since regions that compute forward
  // values again then have one operand less.
  ValueId over_rows(Writer& write, ValueId channels, std::string_view suffix, const Shape& image) {
    if (image.size() == 2) return channels;
    const auto [view, first] = views_.try_emplace({channels, image.size()}, kNone);
    if (first) {
      Shape shape(image.size(), 1);
      shape[1] = image[1];
      view->second = write(op::Reshape, suffix, {channels}, {{"shape", shape}, {"allowzero", int64_t{1}}});
    }
    return view->second;
  }

  // Relu next to a batch norm has kernels that also join convolutions. It is written out only if regions compute all
  // that reads y, so that nothing has to store it.
  bool is_opened(NodeId n, ValueId y) const {
    const std::vector<NodeId>& readers = rewriter_.readers(y);
    const auto is_forward = [&](NodeId reader) {
      return rewriter_.is_elementwise(reader, rewriter_.shape(y)) && rewriter_.node(reader).stage == Stage::Forward;
    };
    if (std::none_of(readers.begin(), readers.end(), is_forward)) return false;
    return int_attribute(rewriter_.node(n), "relu") == 0 ||
           std::all_of(readers.begin(), readers.end(),
                       [&](NodeId reader) { return region_reads(graph_, rewriter_, reader, y); });
  }

  void open_training(NodeId n) {
    const Node node = rewriter_.node(n);
    const ValueId x = node.inputs[In::X], y = node.outputs[Out::Y];
    if (rewriter_.input(n, In::Residual) != kNone || !is_normalised(x) || !is_opened(n, y)) return;
    const ValueId mean = rewriter_.output(n, Out::SavedMean), inv_std = rewriter_.output(n, Out::SavedInvStd);
    const Shape shape = rewriter_.shape(x);
    if (mean == kNone || inv_std == kNone) return;
    opened_.insert(mean);

    Attributes attributes;
    for (const char* name : {"epsilon", "momentum"}) attributes.set(name, float_attribute(node, name));
    for (const char* name : {"correction", "chunk_pixels"}) attributes.set(name, int_attribute(node, name));
    std::vector<ValueId> inputs = {x, node.inputs[In::Mean], node.inputs[In::Variance]};
    if (rewriter_.input(n, In::Partials) != kNone) inputs.push_back(node.inputs[In::Partials]);
    rewriter_.become(n, op::BatchNormStatistics, std::move(inputs),
                     {rewriter_.output(n, Out::NewMean), rewriter_.output(n, Out::NewVariance), mean, inv_std},
                     std::move(attributes));
    Writer write{rewriter_, n, true};
    const ValueId deviation =
        write(op::Sub, "deviation", {write.in_float(x, "x"), over_rows(write, mean, "mean", shape)});
    const ValueId normal = write(op::Mul, "normal", {deviation, over_rows(write, inv_std, "inv_std", shape)});
    const ValueId scaled = write(op::Mul, "scaled", {normal, over_rows(write, node.inputs[In::Scale], "scale", shape)});
    ValueId made = write(op::Add, "biased", {scaled, over_rows(write, node.inputs[In::Bias], "bias", shape)});
    if (int_attribute(node, "relu") != 0) made = write(op::Relu, "relu", {made});
    if (rewriter_.value(y).type.dtype == DataType::Bfloat16) {
      made = write(op::Cast, "y", {made}, {{"to", onnx_number(DataType::Bfloat16)}});
    }
    rewriter_.set_outputs(rewriter_.value(made).producer, {y});
  }

  void open_gradient(NodeId n) {
    const Node node = rewriter_.node(n);
    const ValueId x = node.inputs[GradIn::X], dx = rewriter_.output(n, GradOut::dX);
    const bool relu = int_attribute(node, "relu") != 0;
    if (rewriter_.input(n, GradIn::Partials) != kNone || !is_normalised(x)) return;
    if (relu && !opened_.contains(node.inputs[GradIn::SavedMean])) return;
    if (rewriter_.output(n, GradOut::Residual) != kNone || dx == kNone) return;
    const Shape shape = rewriter_.shape(x);
    const ValueId second = rewriter_.input(n, GradIn::Second);
    ValueId gradient = node.inputs[GradIn::dY];
    const auto is_joined = [&](ValueId term) {
      return term != kNone && rewriter_.is_elementwise(rewriter_.value(term).producer, shape);
    };
    if (!is_joined(gradient) && !is_joined(second)) return;

    Writer write{rewriter_, n, false};
    if (second != kNone) gradient = write(op::Add, "gradients", {gradient, second});
    ValueId g = write.in_float(gradient, "g");
    const auto channels = [&](size_t i, std::string_view suffix) {
      return over_rows(write, node.inputs[i], suffix, shape);
    };
    const ValueId inv_std = channels(GradIn::SavedInvStd, "inv_std");
    const ValueId deviation =
        write(op::Sub, "deviation", {write.in_float(x, "x"), channels(GradIn::SavedMean, "mean")});
    const ValueId normal = write(op::Mul, "normal", {deviation, inv_std});
    const ValueId scale = channels(GradIn::Scale, "scale");
    if (relu) {
      const ValueId scaled = write(op::Mul, "again", {normal, scale});
      const ValueId y = write(op::Add, "biased", {scaled, channels(GradIn::Bias, "bias")});
      g = write(op::ReluGrad, "passed", {g, y});
    }
    const ValueId product = write(op::Mul, "product", {g, normal});
    const double share = double(shape[1]) / double(element_count(shape));
    std::vector<std::pair<NodeId, ValueId>> sums;  // which node makes which output of the gradient
    const auto sum = [&](ValueId value, std::string_view suffix, size_t output) {
      const ValueId mean = write(op::ChannelSum, std::string(suffix) + ".mean", {value}, {{"scale", share}});
      const ValueId whole = rewriter_.output(n, output);
      if (whole != kNone) {
        const ValueId made = write(op::ChannelSum, suffix, {value});
        sums.emplace_back(rewriter_.value(made).producer, whole);
      }
      return over_rows(write, mean, std::string(suffix) + ".share", shape);
    };
    const ValueId by_bias = sum(g, "dbias", GradOut::dBias), by_scale = sum(product, "dscale", GradOut::dScale);
    const ValueId centred = write(op::Sub, "centred", {g, by_bias});
    const ValueId along = write(op::Mul, "along", {normal, by_scale});
    const ValueId rest = write(op::Sub, "rest", {centred, along});
    const ValueId deviating = write(op::Mul, "deviating", {rest, inv_std});
    if (rewriter_.value(dx).type.dtype == DataType::Bfloat16) {
      const ValueId scaled = write(op::Mul, "scaled", {deviating, scale});
      rewriter_.become(n, op::Cast, {scaled}, {dx}, {{"to", onnx_number(DataType::Bfloat16)}});
    } else {
      rewriter_.become(n, op::Mul, {deviating, scale}, {dx}, {});
    }
    for (const auto& [made_by, value] : sums) rewriter_.set_outputs(made_by, {value});
  }

  Graph& graph_;
  Rewriter rewriter_;
  std::set<ValueId> opened_;                             // means of the batch norms that have been written out
  std::map<std::pair<ValueId, size_t>, ValueId> views_;  // by numbers of channels and the rank of images
};

class GroupNorms {
 public:
  GroupNorms(Graph& graph, bool generated) : rewriter_(graph), generated_(generated) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!rewriter_.is(n, kNormalizeGroups) && !rewriter_.is(n, kNormalizeGroupsGrad)) continue;
      const bool forward = rewriter_.is(n, kNormalizeGroups);
      const ValueId x = rewriter_.input(n, forward ? size_t(LayerNormInput::X) : size_t(NormalizeGroupsGradInput::X));
      const bool by_region = generated_ && is_image(x);
      if (forward) {
        by_region ? open(n, x) : as_rows(n, {x}, op::Normalize);
      } else {
        by_region ? open_gradient(n, x) : as_rows(n, {rewriter_.input(n), x}, op::NormalizeGrad);
      }
    }
    rewriter_.finish();
  }

 private:
  using Out = NormalizeGroupsOutput;
  using GradIn = NormalizeGroupsGradInput;

  // Channels innermost, and numbers that regions compute with. Otherwise the channels of a group lie in one piece.
  bool is_image(ValueId x) const {
    const TensorType& type = rewriter_.value(x).type;
    return innermost_axis(type) == 1 && is_number(type.dtype) && type.shape[1] > 1 && type.elements() > 0;
  }

  // (N, C, 1, …). A region takes the sums of one sample for those of all rows.
  ValueId mean_of_channels(Writer& write, ValueId value, const std::string& name) {
    const Shape shape = rewriter_.shape(value);
    if (shape[0] == 1) {
      Shape one(shape.size(), 1);
      one[1] = shape[1];
      const double share = double(shape[1]) / double(element_count(shape));
      const ValueId sums = write(op::ChannelSum, name + ".all", {value}, {{"scale", share}});
      return write(op::Reshape, name, {sums}, {{"shape", one}});
    }
    std::vector<int64_t> pixels;
    for (size_t axis = 2; axis < shape.size(); ++axis) pixels.push_back(int64_t(axis));
    return write(op::ReduceMean, name, {value}, {{"axes", pixels}, {"keepdims", int64_t{1}}});
  }

  // The node becomes the product of two floats, in the type of its first output.
  void become_product(NodeId n, Writer& write, ValueId a, ValueId b) {
    const ValueId result = rewriter_.output(n);
    if (rewriter_.value(result).type.dtype != DataType::Bfloat16) {
      return rewriter_.become(n, op::Mul, {a, b}, {result}, {});
    }
    const ValueId product = write(op::Mul, "made", {a, b});
    rewriter_.become(n, op::Cast, {product}, {result}, {{"to", onnx_number(DataType::Bfloat16)}});
  }

  // Sums of squares lose digits where the mean is large. With bfloat16, which has eight where sums have 24, x is read
  // once for both sums. Otherwise the mean is taken off first, also if a region may read x before it was rounded.
  void open(NodeId n, ValueId x) {
    const Node node = rewriter_.node(n);
    const Attributes groups = {{"groups", int_attribute(node, "groups")}};
    Attributes moments = groups;
    moments.set("epsilon", float_attribute(node, "epsilon"));
    const bool once = rewriter_.value(x).type.dtype == DataType::Bfloat16 && rewriter_.producer(x, op::Cast) == kNone;
    Writer write{rewriter_, n, false};
    const ValueId wide = write.in_float(x, "x");
    const ValueId means = mean_of_channels(write, wide, "means");
    ValueId mean = kNone, inv_std = kNone;
    if (once) {
      const ValueId squares = mean_of_channels(write, write(op::Mul, "square", {wide, wide}), "squares");
      inv_std = write(kGroupMoments, "inv_std", {squares, means}, moments);
      mean = rewriter_.add_output(rewriter_.value(inv_std).producer, node.name + ".mean");
    } else {
      mean = write(kGroupMean, "mean", {means}, groups);
    }
    const ValueId deviation = write(op::Sub, "deviation", {wide, mean});
    if (!once) {
      const ValueId squares = mean_of_channels(write, write(op::Mul, "square", {deviation, deviation}), "squares");
      inv_std = write(kGroupMoments, "inv_std", {squares}, moments);
    }
    for (const auto& [output, value] : {std::pair(Out::Mean, mean), std::pair(Out::InvStd, inv_std)}) {
      if (rewriter_.output(n, output) != kNone) rewriter_.replace_uses(rewriter_.output(n, output), value);
    }
    become_product(n, write, deviation, inv_std);
  }

  void open_gradient(NodeId n, ValueId x) {
    const Node node = rewriter_.node(n);
    const ValueId inv_std = node.inputs[GradIn::InvStd];
    Writer write{rewriter_, n, false};
    const ValueId gradient = write.in_float(node.inputs[GradIn::dY], "g");
    const ValueId deviation = write(op::Sub, "deviation", {write.in_float(x, "x"), node.inputs[GradIn::Mean]});
    const ValueId normal = write(op::Mul, "normal", {deviation, inv_std});
    const ValueId sums = mean_of_channels(write, gradient, "means");
    const ValueId products = mean_of_channels(write, write(op::Mul, "product", {gradient, normal}), "products");
    const ValueId mean = write(kGroupMean, "mean", {sums, products}, {{"groups", int_attribute(node, "groups")}});
    const ValueId along = rewriter_.add_output(rewriter_.value(mean).producer, node.name + ".along");
    const ValueId centred = write(op::Sub, "centred", {gradient, mean});
    const ValueId rest = write(op::Sub, "rest", {centred, write(op::Mul, "share", {normal, along})});
    become_product(n, write, rest, inv_std);
  }

  // Each group is a row of the operator. The batch is 0 in these shapes, "as it is": find_mixing() runs a model with
  // others.
  void as_rows(NodeId n, std::vector<ValueId> inputs, std::string_view op) {
    const Node node = rewriter_.node(n);
    const ValueId result = node.output();
    const TensorType type = rewriter_.value(result).type;
    const int64_t groups = int_attribute(node, "groups");
    const int64_t elements = element_count({type.shape.begin() + 1, type.shape.end()});
    Shape image = type.shape, rows = {type.shape[0], groups, elements / groups};
    const int64_t empty = elements == 0;  // 0 is an extent then
    if (!empty) image[0] = rows[0] = 0;
    const Attributes to_rows = {{"shape", rows}, {"allowzero", empty}}, back = {{"shape", image}, {"allowzero", empty}};
    const bool turned = type.layout != Layout::RowMajor;
    Writer write{rewriter_, n, false};
    for (ValueId& input : inputs) {
      const std::string suffix = &input == &inputs.front() ? "rows" : "x";
      ValueId& known = rows_.try_emplace({input, groups}, kNone).first->second;
      if (known == kNone) {
        if (turned) input = write(op::ChangeLayout, suffix + ".row_major", {input}, to(Layout::RowMajor));
        known = write(op::Reshape, suffix, {input}, to_rows);
      }
      input = known;
    }
    Attributes attributes = {{"axis", int64_t{2}}, {"epsilon", epsilon_of(n, node)}};
    ValueId made = write(op, "groups", inputs, std::move(attributes));
    if (!turned) return rewriter_.become(n, op::Reshape, {made}, {result}, back);
    made = write(op::Reshape, "row_major", {made}, back);
    rewriter_.become(n, op::ChangeLayout, {made}, {result}, to(type.layout));
  }

  // The gradient has the norm's own, whose mean it reads.
  double epsilon_of(NodeId n, const Node& node) {
    if (node.is(kNormalizeGroups)) return epsilons_[rewriter_.output(n, Out::Mean)] = float_attribute(node, "epsilon");
    return epsilons_.at(rewriter_.input(n, GradIn::Mean));
  }
  static Attributes to(Layout layout) { return {{"to", std::string(name_of(layout))}}; }

  Rewriter rewriter_;
  const bool generated_;
  std::map<ValueId, double> epsilons_;                   // by the mean that a norm as rows would have made
  std::map<std::pair<ValueId, int64_t>, ValueId> rows_;  // of an image in groups, for forward and backward
};

}  // namespace

void open_batch_norms(Graph& graph) {
  BatchNorms(graph).run();
}

void open_group_norms(Graph& graph, bool generated) {
  GroupNorms(graph, generated).run();
}

}  // namespace arbalest
