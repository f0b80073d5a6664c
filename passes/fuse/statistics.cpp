// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "graph/op.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/statistics_chunks.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

bool all_are(const Node& node, const char* name, int64_t value) {
  const std::vector<int64_t> values = ints_attribute(node, name);
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
}

// A convolution of images of few channels that is folded by its stride, and has the row of taps then that a kernel of
// ours takes: 7 × 7 with stride 2 from three channels.
bool is_folded_by_stride(const Node& node, const Shape& filter) {
  const std::vector<int64_t> strides = ints_attribute(node, "strides"), pads = ints_attribute(node, "pads");
  if (strides.size() != 2 || pads.empty() || strides[0] < 2) return false;
  if (!all_are(node, "strides", strides[0]) || !all_are(node, "pads", pads[0])) return false;
  const FoldedRow row = folded_row(filter[1], filter[3], strides[0], pads[0]);
  return filter[0] % 8 == 0 && row.channels * row.taps == kFoldedRowElements;
}

// The pixels of a chunk, as PixelChunks has them, if the device has a kernel and the convolution that makes `image`, or
// that image's gradient, is one of those that kernels of ours fuse.
std::optional<int64_t> fusible_chunks(const Graph& graph, const Node& node, const TensorType& image,
                                      const DeviceModel& device, int learners) {
  if (image.shape.size() != 4 || image.elements() == 0) return std::nullopt;
  if (!all_are(node, "dilations", 1) || int_attribute(node, "group") != 1) return std::nullopt;
  const Shape& filter = graph.values[node.input(ConvInput::W)].type.shape;
  if (!all_are(node, "strides", 1)) {
    const bool forward = node.is(op::Conv);
    if (!device.is_hopper() || !forward || !is_folded_by_stride(node, filter)) return std::nullopt;
    return row_chunk_pixels(image.shape, device.multiprocessors);
  }
  const int64_t channels = image.shape[1];
  // These are not timed against others: so only what they were faster for.
  const bool few = channels == 16 || channels == 32 || (channels == 64 && has_few_pixels(image.shape));
  if (few && device.has_large_blocks() && image.shape[3] <= kWidestThin && fills_tiles(image.shape) &&
      filter == Shape{channels, channels, 3, 3} && all_are(node, "pads", 1)) {
    const int64_t chunks = statistics_chunks(image.shape, learners).chunk_rows;
    return chunks == pixel_chunks(image.shape, 0).pixels ? 0 : chunks;
  }
  // These are, when kernels are made: against a convolution and a pass of its own.
  const bool packed = device.is_hopper() && filter[0] % 8 == 0 && filter[1] % 8 == 0;
  if (packed && filter[2] == 1 && filter[3] == 1 && all_are(node, "pads", 0)) {
    return pointwise_chunk_pixels(image.shape, device.multiprocessors);
  }
  if (packed && filter[2] == 3 && filter[3] == 3 && all_are(node, "pads", 1) &&
      fills_halo_tiles(image.shape, device.multiprocessors) && std::min(filter[0], filter[1]) >= kFewestHaloChannels) {
    return halo_chunk_pixels(image.shape, device.multiprocessors);
  }
  return std::nullopt;
}

class StatisticsFusion {
 public:
  StatisticsFusion(Graph& graph, const DeviceModel& device, int learners)
      : graph_(graph), device_(device), learners_(learners), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::BatchNormTraining)) fuse_training(n);
      if (rewriter_.is(n, op::BatchNormGrad)) fuse_gradient(n);
    }
    rewriter_.finish();
  }

 private:
  struct Producer {
    NodeId node = kNone;
    int64_t chunk_pixels = 0;
  };

  // The convolution, of the operator `op`, that makes `value`; of no node where it is none that can be fused.
  Producer fusible_producer(ValueId value, std::string_view op) const {
    const NodeId producer = rewriter_.producer(value, op);
    if (producer == kNone || rewriter_.value(value).view.base != kNone) return {};
    const std::optional<int64_t> chunks =
        fusible_chunks(graph_, rewriter_.node(producer), rewriter_.value(value).type, device_, learners_);
    return chunks ? Producer{producer, *chunks} : Producer{};
  }

  // A second output of the convolution `conv` for `norm`.
  ValueId add_partials(NodeId conv, int64_t chunk_pixels, NodeId norm) {
    rewriter_.attributes(norm).set("chunk_pixels", chunk_pixels);
    rewriter_.attributes(conv).set("chunk_pixels", chunk_pixels);
    return rewriter_.add_output(conv, rewriter_.node(conv).name + ".partials");
  }

  void fuse_training(NodeId norm) {
    const auto [conv, chunk_pixels] = fusible_producer(rewriter_.input(norm, BatchNormInput::X), op::Conv);
    const bool has_bias = conv != kNone && rewriter_.node(conv).inputs.size() > ConvInput::B;
    if (conv == kNone || has_bias) return;
    rewriter_.set_op(conv, op::ConvStatistics);
    rewriter_.set_input(norm, BatchNormInput::Partials, add_partials(conv, chunk_pixels, norm));
  }

  // Whether the value is a convolution's gradient of the type of the batch norm's X that nothing else reads.
  bool is_fusible_gradient(ValueId gradient, NodeId norm) const {
    return gradient != kNone && rewriter_.only_reader(gradient) == norm &&
           rewriter_.value(gradient).type == rewriter_.value(rewriter_.input(norm, BatchNormGradInput::X)).type &&
           fusible_producer(gradient, op::ConvGradInput).node != kNone;
  }

  void fuse_gradient(NodeId norm) {
    using In = BatchNormGradInput;
    const auto in = [&](size_t i) { return rewriter_.input(norm, i); };
    ValueId gradient = in(In::dY), second = in(In::Second);
    if (!is_fusible_gradient(gradient, norm)) std::swap(gradient, second);  // of two, either
    if (!is_fusible_gradient(gradient, norm)) return;
    const auto [conv, chunk_pixels] = fusible_producer(gradient, op::ConvGradInput);
    rewriter_.set_op(conv, op::ConvGradInputSums);
    rewriter_.set_inputs(
        conv, {rewriter_.input(conv, ConvSumsInput::dY), rewriter_.input(conv, ConvSumsInput::W), in(In::X), in(In::Y),
               in(In::Scale), in(In::SavedMean), in(In::SavedInvStd), in(In::Bias), second});
    rewriter_.move_before(conv, norm);  // where all of these are known
    const ValueId partials = add_partials(conv, chunk_pixels, norm);
    rewriter_.attributes(norm).set("relu", int64_t{in(In::Bias) != kNone});
    rewriter_.attributes(norm).set("residual", int64_t{0});
    rewriter_.set_inputs(norm, {gradient, in(In::X), kNone, in(In::Scale), in(In::SavedMean), in(In::SavedInvStd),
                                in(In::Bias), kNone, partials});
    std::vector<ValueId> outputs = rewriter_.node(norm).outputs;
    if (outputs.size() <= BatchNormGradOutput::Residual) return;
    const ValueId residual = outputs[BatchNormGradOutput::Residual];  // the same gradient
    outputs.resize(BatchNormGradOutput::Residual);
    rewriter_.set_outputs(norm, std::move(outputs));
    rewriter_.replace_uses(residual, gradient);
  }

  const Graph& graph_;
  const DeviceModel& device_;
  int learners_;
  Rewriter rewriter_;
};

}  // namespace

void fuse_statistics(Graph& graph, const DeviceModel& device, int learners) {
  StatisticsFusion(graph, device, learners).run();
}

}  // namespace arbalest
