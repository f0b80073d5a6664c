// SPDX-License-Identifier: Apache-2.0

// Layers: operators that own their parameters. They expand into operators with explicit parameters.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/layers/initializers.h"
#include "ops/layers/layer_axis.h"
#include "ops/nn/window.h"
#include "ops/norm/batch_norms.h"

namespace arbalest {
namespace {

// The window of a Conv or ConvBnRelu layer. Without `pads` it is centred: the image keeps its size at stride 1.
struct ConvLayer {
  TensorType x;
  int64_t filters, group;
  Window window;

  ConvLayer(const Node& node, const TensorType& image)
      : x(image),
        filters(int_attribute_from(node, "filters", 1)),
        group(int_attribute_from(node, "group", 1)),
        window(window_of(node, image.shape)) {
    if (!ints_attribute(node, "pads").empty() || string_attribute(node, "auto_pad") != "NOTSET") return;
    for (int axis = 0; axis < 3; ++axis) window.pad_begin[axis] = window.pad_end[axis] = (window.span(axis) - 1) / 2;
  }

  // Values along the image's spatial axes, which are the last ones of `lifted`.
  std::vector<int64_t> extents(const Pixels& lifted) const {
    return {lifted.end() - int64_t(x.shape.size() - 2), lifted.end()};
  }
  Shape filter_shape() const {
    Shape shape = {filters, x.shape[1] / group};
    for (const int64_t extent : extents(window.kernel)) shape.push_back(extent);
    return shape;
  }
  Fans fans() const {
    const double pixels = double(window.kernel[0]) * double(window.kernel[1]) * double(window.kernel[2]);
    return {double(x.shape[1] / group) * pixels, double(filters) * pixels};
  }
  TensorType output_type() const { return {x.dtype, windowed_shape(window, x.shape, filters)}; }
  Attributes attributes() const {
    std::vector<int64_t> pads = extents(window.pad_begin);
    for (const int64_t pad : extents(window.pad_end)) pads.push_back(pad);
    return {{"kernel_shape", extents(window.kernel)},
            {"strides", extents(window.stride)},
            {"pads", pads},
            {"dilations", extents(window.dilation)},
            {"group", group}};
  }
};

void infer_conv_layer(InferContext& context) {
  const Node& node = context.node();
  const TensorType& x = floating_input(context, 0, {3, 4, 5});
  const ConvLayer layer(node, x);
  if (x.shape[1] == 0)
    context.fail(fmt::format("input 'X' is {}, which has no channels; expected 1 or more", to_string(x)));
  if (x.shape[1] % layer.group != 0 || layer.filters % layer.group != 0) {
    context.fail(
        fmt::format("attribute 'group' is {}; expected a divisor of the {} channels of input 'X' and of the {} "
                    "filters",
                    layer.group, x.shape[1], layer.filters));
  }
  check_fits(node, layer.window, x);
  weight_initializer(node, layer.fans());
  context.set_output(0, layer.output_type());
}

void expand_conv(ExpandContext& context) {
  const Node& node = context.node();
  const TensorType x = context.type(context.input(0));
  const ConvLayer layer(node, x);
  const Fans fans = layer.fans();
  std::vector<ValueId> inputs = {context.input(0)};
  inputs.push_back(context.parameter("weight", layer.filter_shape(), weight_initializer(node, fans)));
  if (flag_attribute(node, "bias")) {
    inputs.push_back(context.parameter("bias", {layer.filters}, bias_initializer(node, fans)));
  }
  context.replace_output(0, context.add("Conv", "", inputs, 1, layer.attributes())[0]);
}

// Adds BatchNormTraining with its parameters and statistics, named "<output>.<prefix>weight" and so on.
ValueId add_batch_norm(ExpandContext& context, ValueId x, const std::string& prefix, std::string_view label) {
  const Node& node = context.node();
  const Shape channels{context.type(x).shape[1]};
  const ValueId scale = context.parameter(prefix + "weight", channels, constant_initializer(1));
  const ValueId bias = context.parameter(prefix + "bias", channels, constant_initializer(0));
  const ValueId mean = context.state(prefix + "running_mean", channels, constant_initializer(0));
  const ValueId variance = context.state(prefix + "running_var", channels, constant_initializer(1));
  if (!flag_attribute(node, "training_mode")) {
    return context.add("arbalest.BatchNormInference", label, {x, scale, bias, mean, variance}, 1,
                       {{"epsilon", float_attribute(node, "epsilon")}})[0];
  }
  const auto outputs =
      context.add("arbalest.BatchNormTraining", label, {x, scale, bias, mean, variance}, 5,
                  {{"epsilon", float_attribute(node, "epsilon")}, {"momentum", float_attribute(node, "momentum")}});
  context.carry(mean, outputs[BatchNormOutput::NewMean]);
  context.carry(variance, outputs[BatchNormOutput::NewVariance]);
  return outputs[BatchNormOutput::Y];
}

void check_normalisation(const Node& node) {
  flag_attribute(node, "training_mode");
  positive_float(node, "epsilon");
  if (const double momentum = float_attribute(node, "momentum"); !(momentum >= 0 && momentum <= 1)) {
    fail(node, fmt::format("attribute 'momentum' is {}; expected 0 to 1", momentum));
  }
}

void infer_batch_norm_layer(InferContext& context) {
  check_normalisation(context.node());
  context.set_output(0, floating_input(context, 0, {2, 3, 4, 5}));
}

void expand_batch_norm(ExpandContext& context) {
  context.replace_output(0, add_batch_norm(context, context.input(0), "", ""));
}

void infer_conv_bn_relu(InferContext& context) {
  check_normalisation(context.node());
  flag_attribute(context.node(), "relu");
  infer_conv_layer(context);
}

void expand_conv_bn_relu(ExpandContext& context) {
  const Node& node = context.node();
  const TensorType x = context.type(context.input(0));
  const ConvLayer layer(node, x);
  const bool relu = flag_attribute(node, "relu");
  const ValueId weight = context.parameter("conv.weight", layer.filter_shape(), weight_initializer(node, layer.fans()));
  const ValueId conv = context.add("Conv", "conv", {context.input(0), weight}, 1, layer.attributes())[0];
  const ValueId normal = add_batch_norm(context, conv, "bn.", relu ? "bn" : "");
  context.replace_output(0, relu ? context.add("Relu", "", {normal}, 1)[0] : normal);
}

// Number of features of a Linear layer: the elements along the axes from `axis` on.
int64_t features_of(const TensorType& x, size_t axis) {
  return element_count({x.shape.begin() + int64_t(axis), x.shape.end()});
}

void infer_linear(InferContext& context) {
  const TensorType& x = floating_input(context, 0, {2, 3, 4, 5});
  const size_t axis = layer_axis(context.node(), x);
  const int64_t units = int_attribute_from(context.node(), "units", 1);
  if (features_of(x, axis) == 0) {
    context.fail(fmt::format("input 'X' is {}, which has no features; expected 1 or more", to_string(x)));
  }
  weight_initializer(context.node(), {double(features_of(x, axis)), double(units)});
  Shape shape(x.shape.begin(), x.shape.begin() + int64_t(axis));
  shape.push_back(units);
  context.set_output(0, {x.dtype, shape});
}

// All rows of features are one matrix. Shapes leave the batch open, since validation may have another one.
void expand_linear(ExpandContext& context) {
  const Node& node = context.node();
  const TensorType whole = context.type(context.input(0));
  const size_t axis = layer_axis(node, whole);
  const int64_t units = int_attribute(node, "units"), features = features_of(whole, axis);
  ValueId x = context.input(0);
  if (axis > 1) {
    x = context.add("Reshape", "rows", {x}, 1, {{"shape", Shape{-1, features}}})[0];
  } else if (whole.shape.size() != 2) {
    x = context.add("Flatten", "flatten", {x}, 1)[0];
  }
  const Fans fans{double(features), double(units)};
  std::vector<ValueId> inputs = {x, context.parameter("weight", {units, features}, weight_initializer(node, fans))};
  if (flag_attribute(node, "bias")) inputs.push_back(context.parameter("bias", {units}, bias_initializer(node, fans)));
  ValueId y = context.add("Gemm", axis > 1 ? "gemm" : "", inputs, 1, {{"transB", int64_t{1}}})[0];
  if (axis > 1) {
    Shape shape(whole.shape.begin(), whole.shape.begin() + int64_t(axis));
    shape[0] = -1;
    shape.push_back(units);
    y = context.add("Reshape", "", {y}, 1, {{"shape", shape}})[0];
  }
  context.replace_output(0, y);
}

std::vector<AttributeSpec> conv_layer_specs(const char* init) {
  std::vector<AttributeSpec> specs = {
      required_spec("filters", AttributeKind::Int, "output channels"),
      required_spec("kernel_shape", AttributeKind::Ints, "extents of a filter along the spatial axes"),
      int_spec("group", 1, "groups of channels that do not mix"), init_spec(init)};
  for (AttributeSpec& spec : window_specs()) {
    if (spec.name == "pads") {
      spec.doc =
          "pixels before the image along each spatial axis, then after it; default: half the filter on each side, so "
          "that the image keeps its size at stride 1. PyTorch and Keras pad nothing unless told to: that is "
          "pads = [0, 0, 0, 0]";
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<AttributeSpec> batch_norm_specs() {
  return {float_spec("epsilon", 1e-5, "added to the variance"),
          float_spec("momentum", 0.1, "weight of the batch in the running statistics, as in PyTorch"),
          int_spec("training_mode", 1, "0: by the running statistics, which stay as they are, in training too")};
}

}  // namespace

void register_layers_basic_layers(OpRegistry& registry) {
  const std::vector<OperandSpec> x = {{.name = "X", .lowered = true}}, y = {{.name = "Y", .lowered = true}};
  std::vector<AttributeSpec> conv_specs = conv_layer_specs("kaiming_uniform");
  conv_specs.push_back(int_spec("bias", 1, "1: a bias is added to each output channel"));
  registry.add({.domain = "arbalest",
                .name = "Conv",
                .doc = "a convolution with its own filters and bias, which pads so that the image keeps its size",
                .inputs = x,
                .outputs = y,
                .attributes = conv_specs,
                .layout = Layout::ChannelsLast,
                .infer = infer_conv_layer,
                .expand = expand_conv});
  registry.add({.domain = "arbalest",
                .name = "BatchNorm",
                .doc = "batch normalisation with its own scale, bias and running statistics",
                .inputs = x,
                .outputs = y,
                .attributes = batch_norm_specs(),
                .layout = Layout::ChannelsLast,
                .infer = infer_batch_norm_layer,
                .expand = expand_batch_norm});
  registry.add(
      {.domain = "arbalest",
       .name = "Linear",
       .doc = "a matrix product with its own weights and bias, of the features from `axis` on",
       .inputs = x,
       .outputs = y,
       .attributes = {required_spec("units", AttributeKind::Int, "output features"),
                      int_spec("axis", 1, "the first of the axes that are features, to the last; -1 for tokens"),
                      int_spec("bias", 1, "1: a bias is added to each unit"), init_spec("kaiming_uniform")},
       .layout = std::nullopt,
       .infer = infer_linear,
       .expand = expand_linear});
  std::vector<AttributeSpec> block_specs = conv_layer_specs("kaiming_normal");
  for (AttributeSpec& spec : batch_norm_specs()) block_specs.push_back(std::move(spec));
  block_specs.push_back(int_spec("relu", 1, "0: without the activation"));
  registry.add({.domain = "arbalest",
                .name = "ConvBnRelu",
                .doc = "a convolution without bias, batch normalisation, and Relu",
                .inputs = x,
                .outputs = y,
                .attributes = block_specs,
                .layout = Layout::ChannelsLast,
                .infer = infer_conv_bn_relu,
                .expand = expand_conv_bn_relu});
}

}  // namespace arbalest
