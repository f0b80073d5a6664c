// SPDX-License-Identifier: Apache-2.0

// DepthToSpace and SpaceToDepth: blocks of pixels for channels, and back.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

// The elements of the deep tensor (N, C·b², H, W) and of the wide one (N, C, H·b, W·b) as boxes of the six axes
// (N, C, H, row of the block, W, column of the block).
struct Blocks {
  Shape box;
  std::vector<int64_t> deep, wide;

  // mode: "DCR", the block's place is the outer part of the deep tensor's channel, or "CRD", it is the inner part.
  Blocks(const TensorType& deep_type, const TensorType& wide_type, int64_t b, const std::string& mode) {
    const int64_t channels = wide_type.shape[1];
    const std::vector<int64_t> d = memory_strides(deep_type), w = memory_strides(wide_type);
    const bool outer = mode == "DCR";
    const int64_t column = outer ? channels * d[1] : d[1], channel = outer ? d[1] : b * b * d[1];
    box = {deep_type.shape[0], channels, deep_type.shape[2], b, deep_type.shape[3], b};
    deep = {d[0], channel, d[2], b * column, d[3], column};
    wide = {w[0], w[1], b * w[2], w[2], b * w[3], w[3]};
  }
};

const TensorType& image_input(const InferContext& context) {
  const TensorType& x = context.input(0);
  if (x.shape.size() != 4) {
    context.fail(fmt::format("{} is {}; expected (N, C, H, W)", input_name(context, 0), to_string(x)));
  }
  return x;
}

void infer_wide(InferContext& context) {
  TensorType y = image_input(context);
  const int64_t b = int_attribute_from(context.node(), "blocksize", 1);
  const std::string mode = string_attribute(context.node(), "mode");
  if (b > (1 << 20) || y.shape[1] % (b * b) != 0) {
    context.fail(fmt::format("{} is {}; expected a multiple of {}² channels", input_name(context, 0), to_string(y), b));
  }
  y.shape = {y.shape[0], y.shape[1] / (b * b), y.shape[2] * b, y.shape[3] * b};
  context.set_output(0, y);
}

void infer_deep(InferContext& context) {
  TensorType y = image_input(context);
  const int64_t b = int_attribute_from(context.node(), "blocksize", 1);
  if (b > (1 << 20) || y.shape[2] % b != 0 || y.shape[3] % b != 0) {
    context.fail(fmt::format("{} is {}; expected a height and a width that are multiples of {}", input_name(context, 0),
                             to_string(y), b));
  }
  y.shape = {y.shape[0], y.shape[1] * b * b, y.shape[2] / b, y.shape[3] / b};
  context.set_output(0, y);
}

// SpaceToDepth has no attribute `mode`: its order is DCR.
std::string mode_of(const Node& node) {
  return node.op->attribute_spec("mode") ? string_attribute(node, "mode") : "DCR";
}

void set_depth_to_space_gradient(GradContext& c, const char* op) {
  c.add_input_gradient(op, {}, c.node().attributes);
}

std::vector<Sample> depth_to_space_samples(bool to_space, bool modes) {
  std::vector<Sample> samples;
  for (const Shape& shape : {Shape{2, 8, 3, 5}, Shape{1, 16, 2, 2}, Shape{2, 12, 4, 3}}) {
    for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
      for (const char* mode : {"DCR", "CRD"}) {
        if (!modes && mode != std::string("DCR")) continue;
        TensorType x = TensorType{DataType::Float32, shape}.in(layout);
        if (!to_space) x.shape = {shape[0], shape[1] / 4, shape[2] * 2, shape[3] * 2};
        Sample sample{.name = fmt::format("{} {}, {}", to_string(x), name_of(layout), mode),
                      .inputs = {{.type = x}},
                      .attributes = {{"blocksize", int64_t{2}}},
                      .tolerance = 0};
        if (modes) sample.attributes.set("mode", std::string(mode));
        samples.push_back(std::move(sample));
      }
    }
  }
  return samples;
}

AttributeSpec block_spec() {
  return required_spec("blocksize", AttributeKind::Int, "height and width of a block");
}
AttributeSpec mode_spec() {
  AttributeSpec spec =
      string_spec("mode", "DCR", "the order of what a channel of input stands for: block, channel or channel, block");
  spec.choices = {"DCR", "CRD"};
  return spec;
}

}  // namespace

Copying copies_of_depth_to_space(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const Blocks blocks(x, y, int_attribute(request.node, "blocksize"), mode_of(request.node));
  return {.boxes = {BoxCopy(blocks.box, blocks.wide, 0, blocks.deep, 0)}};
}

Copying copies_of_space_to_depth(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const Blocks blocks(y, x, int_attribute(request.node, "blocksize"), mode_of(request.node));
  return {.boxes = {BoxCopy(blocks.box, blocks.deep, 0, blocks.wide, 0)}};
}

void add_depth_to_space(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "DepthToSpace",
                .doc = "blocks of pixels made of channels",
                .inputs = {{.name = "input", .lowered = true}},
                .outputs = {{.name = "output", .lowered = true}},
                .attributes = {block_spec(), mode_spec()},
                .layout = std::nullopt,
                .infer = infer_wide,
                .grad = [](GradContext& c) { set_depth_to_space_gradient(c, "arbalest.DepthToSpaceGrad"); },
                .cost = elementwise_cost(0),
                .samples = [] { return depth_to_space_samples(true, true); }});
  registry.add({.domain = "",
                .name = "SpaceToDepth",
                .doc = "channels made of blocks of pixels",
                .inputs = {{.name = "input", .lowered = true}},
                .outputs = {{.name = "output", .lowered = true}},
                .attributes = {block_spec()},
                .layout = std::nullopt,
                .infer = infer_deep,
                .grad = [](GradContext& c) { set_depth_to_space_gradient(c, "DepthToSpace"); },
                .cost = elementwise_cost(0),
                .samples = [] { return depth_to_space_samples(false, false); }});
  registry.add({.domain = "arbalest",
                .name = "DepthToSpaceGrad",
                .doc = "the gradient of DepthToSpace",
                .inputs = {{.name = "dY", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = {block_spec(), mode_spec()},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_deep,
                .cost = elementwise_cost(0),
                .samples = [] { return depth_to_space_samples(false, true); }});
}

}  // namespace arbalest
