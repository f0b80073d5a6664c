// SPDX-License-Identifier: Apache-2.0

// ConvTranspose: what Conv's gradient does with its output, as an operator of its own. ONNX's operator expands into
// arbalest.ConvTransposed, whose padding and output extents are explicit, and the addition of the bias.

#include <fmt/format.h>

#include "ops/conv/cpu/conv_cpu.h"
#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {
namespace {

std::vector<int64_t> ints_or(const Node& node, std::string_view name, size_t count, int64_t fallback) {
  std::vector<int64_t> values = ints_attribute(node, name);
  if (values.empty()) values.assign(count, fallback);
  if (values.size() != count) {
    fail(node, fmt::format("attribute '{}' is {}; expected {} numbers", name, to_string(values, '[', ']'), count));
  }
  return values;
}

// Along one axis, in pixels.
struct TransposedExtents {
  int64_t output, pad_begin, pad_end;
};

struct Transposed {
  std::vector<int64_t> kernel, strides, dilations, pads, outputs;  // along the spatial axes
  int64_t group, channels;                                         // channels of the output

  Transposed(const Node& node, const TensorType& x, const TensorType& w)
      : kernel(w.shape.begin() + 2, w.shape.end()),
        group(int_attribute_from(node, "group", 1)),
        channels(w.shape[1] * group) {
    const size_t axes = kernel.size();
    Node shaped = node;  // whose window is read, for its checks; padding follows below
    shaped.attributes.set("auto_pad", "NOTSET");
    const Window window = window_of(shaped, kernel, x.shape);
    strides = ints_or(node, "strides", axes, 1);
    dilations = ints_or(node, "dilations", axes, 1);
    pads = ints_or(node, "pads", 2 * axes, 0);
    const std::vector<int64_t> output_padding = ints_or(node, "output_padding", axes, 0);
    const std::vector<int64_t> output_shape = ints_attribute(node, "output_shape");
    if (!output_shape.empty() && output_shape.size() != axes) ints_or(node, "output_shape", axes, 0);
    const std::string auto_pad = string_attribute(node, "auto_pad");
    for (size_t i = 0; i < axes; ++i) {
      if (output_padding[i] < 0 || output_padding[i] >= strides[i]) {
        fail(node, fmt::format("attribute 'output_padding' holds {}; expected 0 to {}, less than the stride",
                               output_padding[i], strides[i] - 1));
      }
      const int64_t covered = strides[i] * (x.shape[2 + i] - 1) + output_padding[i] + window.span(int(3 - axes + i));
      const TransposedExtents extents = extents_along(i, covered, x.shape[2 + i], auto_pad, output_shape);
      outputs.push_back(extents.output);
      pads[i] = extents.pad_begin;
      pads[axes + i] = extents.pad_end;
    }
  }

  Attributes attributes() const {
    return {{"kernel_shape", kernel}, {"strides", strides},      {"dilations", dilations},
            {"pads", pads},           {"output_shape", outputs}, {"group", group}};
  }

 private:
  // `covered`: pixels that the windows cover, with output padding.
  TransposedExtents extents_along(size_t i, int64_t covered, int64_t input, const std::string& auto_pad,
                                  const std::vector<int64_t>& output_shape) const {
    const size_t axes = kernel.size();
    const bool same = auto_pad.starts_with("SAME");
    if (output_shape.empty() && !same) {
      const bool valid = auto_pad == "VALID";
      const int64_t begin = valid ? 0 : pads[i], end = valid ? 0 : pads[axes + i];
      return {covered - begin - end, begin, end};
    }
    const int64_t output = output_shape.empty() ? input * strides[i] : output_shape[i];
    const int64_t total = std::max<int64_t>(0, covered - output), half = total / 2;
    return auto_pad == "SAME_UPPER" ? TransposedExtents{output, half, total - half}
                                    : TransposedExtents{output, total - half, half};
  }
};

// X and W fit together.
void check_transposed_operands(InferContext& context) {
  using In = ConvInput;
  const TensorType &x = floating_input(context, In::X, {3, 4, 5}), &w = floating_input(context, In::W);
  if (w.shape.size() != x.shape.size()) {
    context.fail(
        fmt::format("input 'W' is {}; expected as many axes as input 'X' has, {}", to_string(w), to_string(x)));
  }
  if (w.dtype != x.dtype) expect_input(context, In::W, {x.dtype, w.shape}, "the element type of 'X'");
  const int64_t group = int_attribute_from(context.node(), "group", 1);
  if (w.shape[0] != x.shape[1] || x.shape[1] % group != 0) {
    context.fail(fmt::format("input 'W' is {}, with 'group' {}; expected filters for the {} channels of input 'X', {}",
                             to_string(w), group, x.shape[1], to_string(x)));
  }
  const std::vector<int64_t> extents(w.shape.begin() + 2, w.shape.end());
  const std::vector<int64_t> declared = ints_attribute(context.node(), "kernel_shape");
  if (!declared.empty() && declared != extents) {
    context.fail(
        fmt::format("attribute 'kernel_shape' is {}; input 'W' is {}", to_string(declared, '[', ']'), to_string(w)));
  }
  if (element_count(w.shape) < 1) context.fail(fmt::format("input 'W' is {}: there are no filters", to_string(w)));
}

TensorType output_of(const InferContext& context, const Transposed& transposed) {
  const TensorType& x = context.input(0);
  Shape shape = {x.shape[0], transposed.channels};
  const Window window = window_of(context.node(), transposed.kernel, x.shape);
  for (size_t i = 0; i < transposed.outputs.size(); ++i) {
    const int64_t output = transposed.outputs[i];
    if (output < 1) context.fail(fmt::format("the output would have {} pixels along spatial axis {}", output, i));
    Window own = window;
    const int axis = int(3 - transposed.outputs.size() + i);
    own.pad_begin[size_t(axis)] = transposed.pads[i];
    own.pad_end[size_t(axis)] = transposed.pads[transposed.outputs.size() + i];
    if (own.output_extent(axis, output) != x.shape[2 + i]) {
      context.fail(fmt::format(
          "an output of {} pixels along spatial axis {}, padded by {} and {}, does not have {} windows, as 'X' has",
          output, i, own.pad_begin[size_t(axis)], own.pad_end[size_t(axis)], x.shape[2 + i]));
    }
    shape.push_back(output);
  }
  return {x.dtype, shape};
}

void infer_onnx_transposed(InferContext& context) {
  using In = ConvInput;
  check_transposed_operands(context);
  const TensorType y = output_of(context, Transposed(context.node(), context.input(In::X), context.input(In::W)));
  if (context.has_input(In::B))
    expect_input(context, In::B, {master_type(y.dtype), {y.shape[1]}}, "one bias a channel");
  context.set_output(0, y);
}

void expand_onnx_transposed(ExpandContext& context) {
  using In = ConvInput;
  const Node& node = context.node();
  const Transposed transposed(node, context.type(context.input(In::X)), context.type(context.input(In::W)));
  const bool bias = context.input(In::B) != kNone;
  ValueId y = context.add("arbalest.ConvTransposed", bias ? "conv" : "", {context.input(In::X), context.input(In::W)},
                          1, transposed.attributes())[0];
  if (bias) {
    Shape shape(transposed.kernel.size() + 1, 1);
    shape[0] = transposed.channels;
    const ValueId row = context.add("Reshape", "bias", {context.input(In::B)}, 1, {{"shape", shape}})[0];
    y = context.add("Add", "", {y, row}, 1)[0];
  }
  context.replace_output(0, y);
}

void infer_transposed(InferContext& context) {
  check_transposed_operands(context);
  Transposed transposed(context.node(), context.input(ConvInput::X), context.input(ConvInput::W));
  // Padding is explicit here, whatever the output's extents are.
  transposed.pads = ints_attribute(context.node(), "pads");
  context.set_output(0, output_of(context, transposed));
}

void grad_transposed(GradContext& c) {
  using In = ConvInput;
  const ValueId dy = c.output_gradient(0), x = c.input(In::X), w = c.input(In::W);
  const Attributes attributes = window_attributes(c.node(), {"group"});
  if (c.needs_gradient(In::X)) c.set_input_gradient(In::X, c.add("Conv", "grad_input", {dy, w}, 1, attributes)[0]);
  if (c.needs_gradient(In::W)) {
    c.set_input_gradient(In::W, c.add("arbalest.ConvGradWeight", "grad_weight", {dy, x, w}, 1, attributes)[0]);
  }
}

Cost transposed_cost(const Graph& graph, const Node& node) {
  const Convolution conv(node, output_type(graph, node, 0), input_type(graph, node, ConvInput::W),
                         input_type(graph, node, ConvInput::X));
  return {conv.flops(), operand_bytes(graph, node)};
}

std::vector<Sample> conv_transpose_samples() {
  struct Case {
    const char* name;
    Shape x;
    int64_t channels, kernel, stride, pad_begin, pad_end, dilation, group;
    std::vector<int64_t> outputs;
  };
  const Case cases[] = {{"plain", {1, 1, 3, 3}, 2, 3, 1, 0, 0, 1, 1, {5, 5}},
                        {"stride 2", {2, 8, 4, 5}, 4, 3, 2, 1, 1, 1, 1, {7, 9}},
                        {"output padding", {2, 8, 4, 5}, 8, 3, 2, 1, 1, 1, 1, {8, 10}},
                        {"uneven pads", {1, 5, 4, 4}, 3, 4, 2, 0, 1, 1, 1, {9, 9}},
                        {"dilated", {1, 4, 3, 5}, 6, 2, 1, 0, 0, 2, 1, {5, 7}},
                        {"groups", {2, 6, 5, 4}, 4, 3, 1, 1, 1, 1, 2, {5, 4}},
                        {"depthwise", {1, 8, 5, 4}, 8, 4, 2, 1, 1, 1, 8, {10, 8}},
                        {"beyond the windows", {1, 3, 3, 3}, 2, 2, 3, 0, 0, 1, 1, {9, 9}},
                        {"sequence", {2, 4, 6}, 3, 3, 2, 1, 1, 1, 1, {11}},
                        {"volume", {1, 2, 3, 4, 2}, 4, 3, 1, 1, 1, 1, 2, {3, 4, 2}},
                        {"volume, uneven pads", {2, 16, 3, 4, 2}, 32, 3, 2, 1, 0, 2, 2, {8, 10, 6}}};
  std::vector<Sample> samples;
  for (const Case& c : cases) {
    const auto along_axes = [&](int64_t value) { return std::vector<int64_t>(c.x.size() - 2, value); };
    std::vector<int64_t> pads = along_axes(c.pad_begin);
    pads.resize(2 * pads.size(), c.pad_end);
    Shape w = {c.x[1], c.channels / c.group};
    w.resize(c.x.size(), c.kernel);
    samples.push_back({.name = c.name,
                       .inputs = {{{DataType::Float32, c.x}}, {{DataType::Float32, w}}},
                       .attributes = {{"strides", along_axes(c.stride)},
                                      {"dilations", along_axes(c.dilation)},
                                      {"pads", pads},
                                      {"output_shape", c.outputs},
                                      {"group", c.group}}});
  }
  return samples;
}

std::vector<AttributeSpec> conv_transpose_specs() {
  std::vector<AttributeSpec> specs = window_specs();
  specs.insert(specs.begin(),
               ints_spec("kernel_shape", {}, "extents of a filter along the spatial axes; default: W's"));
  specs.push_back(int_spec("group", 1, "groups of channels that do not mix"));
  specs.push_back(
      ints_spec("output_shape", {}, "the output's extents along the spatial axes; padding follows from them"));
  specs.push_back(ints_spec("output_padding", {}, "pixels added after the output along each spatial axis; default: 0"));
  return specs;
}

}  // namespace

void register_conv_conv_transpose(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "ConvTranspose",
                .doc = "the transpose of a convolution: each pixel of X adds a filter to Y",
                .inputs = {lowered("X"), lowered("W").as(OperandSpec::Weight),
                           plain("B", OperandSpec::Optional).as(OperandSpec::Bias)},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = conv_transpose_specs(),
                .layout = Layout::ChannelsLast,
                .infer = infer_onnx_transposed,
                .expand = expand_onnx_transposed});
  registry.add({.domain = "arbalest",
                .name = "ConvTransposed",
                .doc = "ConvTranspose with explicit padding and output extents, without bias",
                .inputs = {{.name = "X", .lowered = true}, {.name = "W", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = conv_transpose_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_transposed,
                .grad = grad_transposed,
                .cost = transposed_cost,
                .samples = conv_transpose_samples,
                .cpu = conv_grad_input_cpu});
}

}  // namespace arbalest
