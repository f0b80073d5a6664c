#include <algorithm>
#include <numeric>
#include <optional>

#include "graph/op.h"
#include "graph/passes/batch_norms.h"
#include "graph/passes/passes.h"
#include "graph/passes/statistics_chunks.h"

namespace arbalest {
namespace {

bool all_are(const Node& node, const char* name, int64_t value) {
  const std::vector<int64_t> values = ints_attribute(node, name);
  return std::all_of(values.begin(), values.end(), [&](int64_t v) { return v == value; });
}

// A convolution of images of few channels that is folded by its stride, and then has the row of taps that a kernel of
// ours takes. It is 7 × 7 with stride 2 from three channels.
bool is_folded_by_stride(const Node& node, const Shape& filter) {
  const std::vector<int64_t> strides = ints_attribute(node, "strides"), pads = ints_attribute(node, "pads");
  if (strides.size() != 2 || pads.empty() || strides[0] < 2) return false;
  if (!all_are(node, "strides", strides[0]) || !all_are(node, "pads", pads[0])) return false;
  const FoldedRow row = folded_row(filter[1], filter[3], strides[0], pads[0]);
  return filter[0] % 8 == 0 && row.channels * row.taps == kFoldedRowElements;
}

// The pixels of a chunk, as PixelChunks has them, if the convolution that makes `image`, or that image's gradient,
// is one of those that kernels of ours fuse.
std::optional<int64_t> fusible_chunks(const Graph& graph, const Node& node, const TensorType& image) {
  if (image.shape.size() != 4 || image.elements() == 0) return std::nullopt;
  if (!all_are(node, "dilations", 1) || int_attribute(node, "group") != 1) return std::nullopt;
  const Shape& filter = graph.values[size_t(node.inputs[1])].type.shape;
  if (!all_are(node, "strides", 1)) {
    const bool forward = node.op->qualified_name() == "Conv";
    return forward && is_folded_by_stride(node, filter) ? std::optional(row_chunk_pixels(image.shape)) : std::nullopt;
  }
  const int64_t channels = image.shape[1];
  // These are not timed against others: so only what they were faster for.
  const bool few = channels == 16 || channels == 32 || (channels == 64 && has_few_pixels(image.shape));
  if (few && image.shape[3] <= kWidestThin && fills_tiles(image.shape) && filter == Shape{channels, channels, 3, 3} &&
      all_are(node, "pads", 1)) {
    return 0;
  }
  // These are, when kernels are made: against a convolution and a pass of its own.
  const bool packed = filter[0] % 8 == 0 && filter[1] % 8 == 0;
  if (packed && filter[2] == 1 && filter[3] == 1 && all_are(node, "pads", 0)) {
    return pointwise_chunk_pixels(image.shape);
  }
  if (packed && filter[2] == 3 && filter[3] == 3 && all_are(node, "pads", 1) && fills_halo_tiles(image.shape) &&
      std::min(filter[0], filter[1]) >= kFewestHaloChannels) {
    return halo_chunk_pixels(image.shape);
  }
  return std::nullopt;
}

class StatisticsFusion {
 public:
  explicit StatisticsFusion(Graph& graph) : graph_(graph), readers_(graph.consumers()), key_(graph.nodes.size()) {
    for (size_t n = 0; n < key_.size(); ++n) key_[n] = int64_t(n) * 2 + 1;
  }

  void run() {
    const size_t count = graph_.nodes.size();
    for (size_t n = 0; n < count; ++n) {
      const std::string op = graph_.nodes[n].op->qualified_name();
      if (op == "arbalest.BatchNormTraining") fuse_training(graph_.nodes[n]);
      if (op == "arbalest.BatchNormGrad") fuse_gradient(n);
    }
    reorder_nodes(graph_, key_);
  }

 private:
  struct Producer {
    NodeId node = kNone;
    int64_t chunk_pixels = 0;
  };

  // The convolution, of the operator `op`, that makes `value`; of no node if it is none that can be fused.
  Producer fusible_producer(ValueId value, const char* op) const {
    const NodeId producer = graph_.values[size_t(value)].producer;
    if (producer == kNone) return {};
    const Node& node = graph_.nodes[size_t(producer)];
    if (node.op->qualified_name() != op || graph_.values[size_t(value)].view.base != kNone) return {};
    const std::optional<int64_t> chunks = fusible_chunks(graph_, node, graph_.values[size_t(value)].type);
    return chunks ? Producer{producer, *chunks} : Producer{};
  }

  // A second output of the node, as its operator infers it, for `norm`.
  ValueId add_partials(NodeId node, int64_t chunk_pixels, Node& norm) {
    norm.attributes.set("chunk_pixels", chunk_pixels);
    graph_.nodes[size_t(node)].attributes.set("chunk_pixels", chunk_pixels);
    const ValueId partials = graph_.add_value(graph_.nodes[size_t(node)].name + ".partials", {});
    graph_.values[size_t(partials)].producer = node;
    graph_.nodes[size_t(node)].outputs.push_back(partials);
    infer(graph_, node);
    return partials;
  }

  void fuse_training(Node& norm) {
    const auto [conv, chunk_pixels] = fusible_producer(norm.inputs[0], "Conv");
    const bool has_bias = conv != kNone && graph_.nodes[size_t(conv)].inputs.size() > 2;
    if (conv == kNone || has_bias) return;
    graph_.nodes[size_t(conv)].op = &builtin_ops().get("arbalest.ConvStatistics");
    norm.inputs.resize(norm_operand::kPartials, kNone);
    norm.inputs.push_back(add_partials(conv, chunk_pixels, norm));
  }

  // Whether the first of a BatchNormGrad's inputs is a convolution's gradient that nothing else reads.
  bool has_fusible_gradient(const std::vector<ValueId>& inputs) const {
    const ValueId gradient = inputs[0];
    if (gradient == kNone || readers_[size_t(gradient)].size() != 1 ||
        graph_.values[size_t(gradient)].type != graph_.values[size_t(inputs[1])].type) {
      return false;
    }
    return fusible_producer(gradient, "arbalest.ConvGradInput").node != kNone;
  }

  void fuse_gradient(size_t n) {
    Node& norm = graph_.nodes[n];
    std::vector<ValueId> of_norm = norm.inputs;
    of_norm.resize(norm_operand::kGradPartials, kNone);
    const bool has_residual = norm.outputs.size() > 3;
    if (!has_fusible_gradient(of_norm)) std::swap(of_norm[0], of_norm[7]);  // of two, either
    if (!has_fusible_gradient(of_norm)) return;
    const auto [gradient, x, y, scale, mean, inv_std, bias, second] =
        std::tuple(of_norm[0], of_norm[1], of_norm[2], of_norm[3], of_norm[4], of_norm[5], of_norm[6], of_norm[7]);
    const auto [conv, chunk_pixels] = fusible_producer(gradient, "arbalest.ConvGradInput");
    Node& fused = graph_.nodes[size_t(conv)];
    fused.op = &builtin_ops().get("arbalest.ConvGradInputSums");
    fused.inputs = {fused.inputs[0], fused.inputs[1], x, y, scale, mean, inv_std, bias, second};
    key_[size_t(conv)] = key_[n] - 1;  // if all of these are known
    norm.inputs = {gradient, x, kNone, scale, mean, inv_std, bias, kNone, add_partials(conv, chunk_pixels, norm)};
    norm.attributes.set("relu", int64_t{bias != kNone});
    norm.attributes.set("residual", int64_t{0});
    if (!has_residual) return;
    const ValueId residual = norm.outputs[3];  // the same gradient
    norm.outputs.resize(3);
    graph_.values[size_t(residual)].producer = kNone;
    for (const NodeId reader : readers_[size_t(residual)]) {
      std::vector<ValueId>& inputs = graph_.nodes[size_t(reader)].inputs;
      std::replace(inputs.begin(), inputs.end(), residual, gradient);
    }
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;
  std::vector<int64_t> key_;  // of each node in the order to come
};

}  // namespace

void fuse_statistics(Graph& graph) {
  StatisticsFusion(graph).run();
}

}  // namespace arbalest
