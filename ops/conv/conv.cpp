// SPDX-License-Identifier: Apache-2.0

// Conv and its gradients: ONNX's operator with explicit filters. The layer arbalest.Conv is in layers.cpp.

#include <fmt/format.h>

#include "ops/conv/conv_type.h"
#include "ops/conv/cpu/conv_cpu.h"
#include "ops/fused/decomposed.h"
#include "ops/names.h"
#include "ops/relu.h"

namespace arbalest {

TensorType convolved_type(const InferContext& context, size_t x_index, size_t w_index) {
  const Node& node = context.node();
  const TensorType &x = floating_input(context, x_index, {3, 4, 5}), &w = floating_input(context, w_index);
  if (w.shape.size() != x.shape.size()) {
    context.fail(
        fmt::format("input 'W' is {}; expected as many axes as input 'X' has, {}", to_string(w), to_string(x)));
  }
  if (w.dtype != x.dtype) expect_input(context, w_index, {x.dtype, w.shape}, "the element type of 'X'");
  const int64_t group = int_attribute_from(node, "group", 1);
  if (x.shape[1] % group != 0 || w.shape[0] % group != 0) {
    context.fail(
        fmt::format("attribute 'group' is {}; expected a divisor of the {} channels of input 'X' and of the {} "
                    "filters of input 'W'",
                    group, x.shape[1], w.shape[0]));
  }
  if (w.shape[1] * group != x.shape[1]) {
    context.fail(fmt::format("input 'W' is {}, for {} channels in {} group{}; input 'X' is {}, of {} channels",
                             to_string(w), w.shape[1] * group, group, group == 1 ? "" : "s", to_string(x), x.shape[1]));
  }
  const std::vector<int64_t> extents(w.shape.begin() + 2, w.shape.end()),
      declared = ints_attribute(node, "kernel_shape");
  if (!declared.empty() && declared != extents) {
    context.fail(
        fmt::format("attribute 'kernel_shape' is {}; input 'W' is {}", to_string(declared, '[', ']'), to_string(w)));
  }
  if (w.shape[0] < 1 || element_count(extents) < 1) {
    context.fail(fmt::format("input 'W' is {}: there are no filters", to_string(w)));
  }
  const Window window = window_of(node, extents, x.shape);
  check_fits(node, window, x);
  return {x.dtype, windowed_shape(window, x.shape, w.shape[0])};
}

std::vector<AttributeSpec> conv_specs() {
  std::vector<AttributeSpec> specs = window_specs();
  specs.insert(specs.begin(),
               ints_spec("kernel_shape", {}, "extents of a filter along the spatial axes; default: W's"));
  specs.push_back(int_spec("group", 1, "groups of channels that do not mix"));
  return specs;
}

std::function<Cost(const Graph&, const Node&)> conv_cost(size_t x, size_t w, std::optional<size_t> dy) {
  return [=](const Graph& graph, const Node& node) {
    const TensorType& out = dy ? input_type(graph, node, *dy) : output_type(graph, node, 0);
    return Cost{Convolution(node, input_type(graph, node, x), input_type(graph, node, w), out).flops(),
                operand_bytes(graph, node)};
  };
}

namespace {

void infer_conv(InferContext& context) {
  const TensorType y = convolved_type(context, ConvInput::X, ConvInput::W);
  if (context.has_input(ConvInput::B))
    expect_input(context, ConvInput::B, {master_type(y.dtype), {y.shape[1]}}, "one bias a filter");
  context.set_output(0, y);
}

// Adds the gradients of X and W, and that of B if `bias`. `dy` is the gradient of the convolution's result before Relu.
void add_gradients(GradContext& c, ValueId dy, bool bias) {
  using In = ConvInput;
  const ValueId x = c.input(In::X), w = c.input(In::W);
  const Attributes attributes = window_attributes(c.node(), {"group"});
  if (c.needs_gradient(In::W)) {
    c.set_input_gradient(In::W, c.add("arbalest.ConvGradWeight", "grad_weight", {x, dy, w}, 1, attributes)[0]);
  }
  if (bias && c.needs_gradient(In::B)) {
    c.set_input_gradient(In::B, c.add("arbalest.ChannelSum", "grad_bias", {dy}, 1)[0]);
  }
  if (c.needs_gradient(In::X)) {
    c.set_input_gradient(In::X, c.add("arbalest.ConvGradInput", "grad_input", {dy, w, x}, 1, attributes)[0]);
  }
}

void grad_conv(GradContext& c) {
  add_gradients(c, c.output_gradient(0), c.input(ConvInput::B) != kNone);
}

void grad_conv_relu(GradContext& c) {
  add_gradients(c, add_relu_gradient(c, ConvInput::B), false);
}

void infer_grad_input(InferContext& context) {
  expect_input(context, ConvGradInputInput::dY, convolved_type(context, ConvGradInputInput::X, ConvGradInputInput::W),
               "the type of Conv's output");
  context.set_output(0, context.input(ConvGradInputInput::X));
}

void infer_grad_weight(InferContext& context) {
  using In = ConvGradWeightInput;
  expect_input(context, In::dY, convolved_type(context, In::X, In::W), "the type of Conv's output");
  context.set_output(0, {master_type(context.input(In::X).dtype), context.input(In::W).shape});
}

// The same as conv_cost(), for a gradient: the input that `spare` numbers tells a shape only.
std::function<Cost(const Graph&, const Node&)> gradient_cost(size_t x, size_t w, size_t dy, size_t spare) {
  return [cost = conv_cost(x, w, dy), spare](const Graph& graph, const Node& node) {
    Cost whole = cost(graph, node);
    whole.bytes -= double(input_type(graph, node, spare).bytes());
    return whole;
  };
}

struct ConvCase {
  const char* name;
  Shape x;
  int64_t filters, kernel, stride, pad, dilation, group;
  bool bias;
  const char* auto_pad = "NOTSET";  // else `pad` is not read
  int64_t pad_end = -1;             // −1: as `pad`

  // The same value for each of X's spatial axes.
  std::vector<int64_t> along_axes(int64_t value) const { return std::vector<int64_t>(x.size() - 2, value); }
  Shape filter_shape() const {
    Shape shape = {filters, x[1] / group};
    shape.resize(x.size(), kernel);
    return shape;
  }
  Attributes attributes() const {
    std::vector<int64_t> pads = along_axes(pad);
    pads.resize(2 * pads.size(), pad_end < 0 ? pad : pad_end);
    Attributes attributes{{"strides", along_axes(stride)}, {"dilations", along_axes(dilation)}, {"group", group}};
    if (auto_pad == std::string_view("NOTSET")) {
      attributes.set("pads", pads);
    } else {
      attributes.set("auto_pad", auto_pad);
    }
    return attributes;
  }
};
const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> cases = {{"1x1", {2, 8, 5, 5}, 16, 1, 1, 0, 1, 1, false},
                                              {"1x1, stride 2", {2, 16, 9, 7}, 32, 1, 2, 0, 1, 1, false},
                                              {"one pixel", {1, 1, 1, 1}, 1, 1, 1, 0, 1, 1, true},
                                              {"3x3, odd", {2, 3, 7, 9}, 5, 3, 1, 1, 1, 1, true},
                                              {"stride 2", {3, 16, 9, 9}, 24, 3, 2, 1, 1, 1, false},
                                              {"13 channels", {1, 13, 6, 5}, 11, 3, 1, 1, 1, 1, true},
                                              {"groups", {2, 8, 6, 6}, 12, 3, 1, 1, 1, 4, true},
                                              {"depthwise", {2, 16, 8, 8}, 16, 3, 2, 1, 1, 16, false},
                                              {"depthwise, 7x7", {2, 24, 9, 8}, 24, 7, 1, 3, 1, 24, true},
                                              {"depthwise, odd, dilated", {1, 37, 7, 9}, 37, 3, 1, 2, 2, 37, true},
                                              {"depthwise, 2 filters", {2, 6, 7, 5}, 12, 3, 1, 1, 1, 6, true},
                                              {"dilated", {1, 6, 11, 10}, 4, 3, 1, 2, 2, 1, true},
                                              {"7x7, stride 2", {2, 3, 23, 21}, 16, 7, 2, 3, 1, 1, false},
                                              {"2x2, gaps", {2, 4, 8, 8}, 4, 2, 3, 0, 1, 1, false},
                                              {"same upper", {2, 8, 8, 7}, 8, 3, 2, 0, 1, 1, true, "SAME_UPPER"},
                                              {"same lower", {1, 5, 9, 8}, 7, 4, 3, 0, 1, 1, false, "SAME_LOWER"},
                                              {"valid", {1, 4, 6, 5}, 4, 2, 2, 0, 1, 1, false, "VALID"},
                                              {"depthwise, same", {1, 8, 8, 8}, 8, 3, 2, 0, 1, 8, true, "SAME_UPPER"},
                                              {"pads after", {2, 16, 8, 8}, 16, 3, 2, 0, 1, 1, true, "NOTSET", 1},
                                              {"1-D", {2, 6, 11}, 4, 3, 2, 1, 1, 2, true},
                                              {"1-D, depthwise", {2, 12, 10}, 12, 5, 1, 4, 1, 12, true, "NOTSET", 0},
                                              {"3-D", {1, 4, 4, 5, 3}, 6, 3, 1, 1, 1, 2, true},
                                              {"3-D, stride 2", {2, 3, 5, 6, 7}, 8, 2, 2, 0, 2, 1, false, "NOTSET", 1},
                                              {"3-D, groups", {2, 32, 7, 9, 6}, 48, 3, 2, 1, 2, 2, true, "NOTSET", 2},
                                              {"3-D, depthwise", {1, 16, 4, 6, 5}, 16, 3, 2, 1, 1, 16, true},
                                              {"3-D, wide padding", {2, 3, 4, 5, 4}, 16, 4, 2, 3, 1, 1, false},
                                              {"3-D, one slice", {2, 16, 1, 7, 6}, 32, 3, 1, 1, 1, 1, true},
                                              {"3-D, same", {2, 16, 5, 6, 7}, 16, 4, 3, 0, 1, 1, false, "SAME_LOWER"},
                                              {"LeNet 1", {64, 1, 28, 28}, 20, 5, 1, 0, 1, 1, true},
                                              {"LeNet 2", {16, 20, 12, 12}, 50, 5, 1, 0, 1, 1, true},
                                              {"colours", {2, 3, 19, 37}, 64, 3, 1, 1, 1, 1, true},
                                              {"colours, after", {2, 3, 24, 20}, 32, 3, 2, 0, 1, 1, true, "NOTSET", 1},
                                              {"58 to 122 channels", {16, 58, 14, 14}, 122, 1, 1, 0, 1, 1, false},
                                              {"ResNet stage 1", {8, 16, 32, 32}, 16, 3, 1, 1, 1, 1, false},
                                              {"ResNet stage 2", {4, 16, 32, 32}, 32, 3, 2, 1, 1, 1, false},
                                              {"ResNet stage 3", {8, 64, 8, 8}, 64, 3, 1, 1, 1, 1, false}};
  return cases;
}

Shape output_shape(const ConvCase& c) {
  Window window;
  const size_t first = 5 - c.x.size();
  for (size_t axis = first; axis < 3; ++axis) {
    window.kernel[axis] = c.kernel, window.stride[axis] = c.stride, window.dilation[axis] = c.dilation;
    window.pad_begin[axis] = c.pad, window.pad_end[axis] = c.pad_end < 0 ? c.pad : c.pad_end;
  }
  const std::string_view auto_pad = c.auto_pad;
  if (auto_pad.starts_with("SAME")) window.pad_to_same(pixels_of(c.x), auto_pad == "SAME_LOWER");
  return windowed_shape(window, c.x, c.filters);
}

// Operands of each case, by name: X, W, B and Y (as dY).
enum ConvOperand : uint8_t { X, W, B, Y };
std::vector<Sample> conv_samples(std::initializer_list<ConvOperand> operands) {
  std::vector<Sample> samples;
  for (const ConvCase& c : conv_cases()) {
    const Shape shapes[] = {c.x, c.filter_shape(), {c.filters}, output_shape(c)};
    Sample sample{.name = c.name, .attributes = c.attributes()};
    for (const ConvOperand operand : operands) {
      if (operand != B || c.bias) sample.inputs.push_back({{DataType::Float32, shapes[operand]}});
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

// Samples with Relu. Gradients are checked only for results of few elements: among many, some are so near to 0 that
// finite differences would cross Relu's kink.
std::vector<Sample> relu_samples() {
  constexpr int64_t kFew = 5000;
  std::vector<Sample> relu = conv_samples({X, W, B});
  for (size_t i = 0; i < relu.size(); ++i) {
    const bool few = element_count(output_shape(conv_cases()[i])) <= kFew;
    for (Sample::Input& input : relu[i].inputs) input.differentiable = few;
  }
  return relu;
}

}  // namespace

void register_conv_conv(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Conv",
                .doc = "a convolution (cross-correlation) with explicit filters",
                .inputs = {lowered("X"), lowered("W").as(OperandSpec::Weight),
                           plain("B", OperandSpec::Optional).as(OperandSpec::Bias)},
                .outputs = {lowered("Y")},
                .attributes = conv_specs(),
                .layout = Layout::ChannelsLast,
                .infer = infer_conv,
                .grad = grad_conv,
                .cost = conv_cost(ConvInput::X, ConvInput::W),
                .samples =
                    [] {
                      return conv_samples({X, W, B});
                    },
                .cpu = conv_cpu});
  registry.add({.domain = "arbalest",
                .name = "ConvRelu",
                .doc = "Conv, and Relu of its result",
                .inputs = {lowered("X"), lowered("W"), {.name = "B", .arity = OperandSpec::Optional}},
                .outputs = {lowered("Y")},
                .attributes = conv_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_conv,
                .grad = grad_conv_relu,
                .decompose =
                    [](ExpandContext& c) {
                      const ValueId y = add_one(c, "Conv", c.node().inputs, c.node().attributes);
                      c.replace_output(0, add_one(c, "Relu", {y}));
                    },
                .cost = conv_cost(ConvInput::X, ConvInput::W),
                .samples = relu_samples,
                .cpu = [](const KernelRequest& r) { return with_relu(conv_cpu(r), r.outputs[0]); }});
  registry.add({.domain = "arbalest",
                .name = "ConvGradInput",
                .doc = "the gradient of Conv's X; X is not read",
                .inputs = {lowered("dY"), lowered("W"), lowered("X")},
                .outputs = {lowered("dX")},
                .attributes = conv_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_grad_input,
                .cost = gradient_cost(ConvGradInputInput::X, ConvGradInputInput::W, ConvGradInputInput::dY,
                                      ConvGradInputInput::X),
                .samples =
                    [] {
                      return conv_samples({Y, W, X});
                    },
                .cpu = conv_grad_input_cpu});
  registry.add({.domain = "arbalest",
                .name = "ConvGradWeight",
                .doc = "the gradient of Conv's W; W is not read",
                .inputs = {lowered("X"), lowered("dY"), lowered("W")},
                .outputs = {{.name = "dW"}},
                .attributes = conv_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_grad_weight,
                .cost = gradient_cost(ConvGradWeightInput::X, ConvGradWeightInput::W, ConvGradWeightInput::dY,
                                      ConvGradWeightInput::W),
                .samples =
                    [] {
                      return conv_samples({X, Y, W});
                    },
                .cpu = conv_grad_weight_cpu});
}

}  // namespace arbalest
