// SPDX-License-Identifier: Apache-2.0

// Layers of transformers and of the convolutional networks that took them over: LayerNorm, LayerScale, ClassToken,
// Embedding and PositionEmbedding. Like all layers they own their parameters, and expand into ONNX's operators.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/definition.h"
#include "ops/layers/initializers.h"
#include "ops/layers/layer_axis.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

void infer_of_channels(InferContext& context) {
  const TensorType& x = floating_input(context, 0, {2, 3, 4, 5});
  layer_axis(context.node(), x);
  context.set_output(0, x);
}

void infer_layer_norm(InferContext& context) {
  positive_float(context.node(), "epsilon");
  infer_of_channels(context);
}

// LayerNormalization takes the last axes: another axis is moved there and back, which of images in memory is none.
void expand_layer_norm(ExpandContext& context) {
  const Node& node = context.node();
  const TensorType x = context.type(context.input(0));
  const size_t axis = layer_axis(node, x), rank = x.shape.size();
  const Shape channels{x.shape[axis]};
  const ValueId scale = context.parameter("weight", channels, constant_initializer(1));
  const ValueId bias = context.parameter("bias", channels, constant_initializer(0));
  const Attributes attributes = {{"axis", int64_t{-1}}, {"epsilon", float_attribute(node, "epsilon")}};
  if (axis + 1 == rank) {
    const std::vector<ValueId> inputs = {context.input(0), scale, bias};
    context.replace_output(0, context.add("LayerNormalization", "", inputs, 1, attributes)[0]);
    return;
  }
  Ints there(rank), back(rank);
  std::iota(there.begin(), there.end(), int64_t{0});
  std::rotate(there.begin() + int64_t(axis), there.begin() + int64_t(axis) + 1, there.end());
  for (size_t i = 0; i < rank; ++i) back[size_t(there[i])] = int64_t(i);
  ValueId y = context.add("Transpose", "moved", {context.input(0)}, 1, {{"perm", there}})[0];
  y = context.add("LayerNormalization", "norm", {y, scale, bias}, 1, attributes)[0];
  context.replace_output(0, context.add("Transpose", "", {y}, 1, {{"perm", back}})[0]);
}

void infer_layer_scale(InferContext& context) {
  const double initial = float_attribute(context.node(), "initial");
  if (!std::isfinite(initial))
    context.fail(fmt::format("attribute 'initial' is {}; expected a finite number", initial));
  infer_of_channels(context);
}

void expand_layer_scale(ExpandContext& context) {
  const Node& node = context.node();
  const TensorType x = context.type(context.input(0));
  const size_t axis = layer_axis(node, x);
  ValueId scale = context.parameter("weight", {x.shape[axis]}, constant_initializer(float_attribute(node, "initial")));
  Shape shape(x.shape.size() - axis, 1);
  shape[0] = x.shape[axis];
  if (shape.size() > 1) scale = context.add("Reshape", "factors", {scale}, 1, {{"shape", shape}})[0];
  context.replace_output(0, context.add("Mul", "", {context.input(0), scale}, 1)[0]);
}

Initializer normal_of(const Node& node) {
  const double deviation = float_attribute(node, "deviation");
  if (deviation >= 0 && std::isfinite(deviation)) return normal_initializer(deviation);
  fail(node, fmt::format("attribute 'deviation' is {}; expected a number of at least 0", deviation));
}

void infer_class_token(InferContext& context) {
  TensorType x = floating_input(context, 0, {3});
  normal_of(context.node());
  ++x.shape[1];
  context.set_output(0, x);
}

// Not by Concat, which would have to know the batch: a row of zeros goes before each sample's tokens, and the token is
// added there.
void expand_class_token(ExpandContext& context) {
  const Shape x = context.type(context.input(0)).shape;
  const ValueId token = context.parameter("weight", {1, 1, x[2]}, normal_of(context.node()));
  const ValueId place = context.add("Pad", "place", {token}, 1, {{"pads", Ints{0, 0, 0, 0, x[1], 0}}})[0];
  const ValueId tokens = context.add("Pad", "tokens", {context.input(0)}, 1, {{"pads", Ints{0, 1, 0, 0, 0, 0}}})[0];
  context.replace_output(0, context.add("Add", "", {tokens, place}, 1)[0]);
}

// A row of the table for each index.
Shape embedding_table(const Node& node) {
  Shape table;
  for (const char* extent : {"rows", "units"}) {
    table.push_back(int_attribute(node, extent));
    if (table.back() < 1) fail(node, fmt::format("attribute '{}' is {}; expected at least 1", extent, table.back()));
  }
  return table;
}

void infer_embedding(InferContext& context) {
  const TensorType& indices = context.input(0);
  if (indices.dtype != DataType::Int32 && indices.dtype != DataType::Int64) {
    context.fail(fmt::format("operand 'X' is {}; expected int32 or int64", to_string(indices)));
  }
  normal_of(context.node());
  TensorType y{DataType::Float32, indices.shape};
  y.shape.push_back(embedding_table(context.node())[1]);
  context.set_output(0, y);
}

void expand_embedding(ExpandContext& context) {
  const Node& node = context.node();
  const ValueId table = context.parameter("weight", embedding_table(node), normal_of(node));
  context.replace_output(0, context.add("Gather", "", {table, context.input(0)}, 1, {{"axis", int64_t{0}}})[0]);
}

void infer_position_embedding(InferContext& context) {
  normal_of(context.node());
  context.set_output(0, floating_input(context, 0, {2, 3, 4, 5}));
}

void expand_position_embedding(ExpandContext& context) {
  Shape shape = context.type(context.input(0)).shape;
  shape[0] = 1;
  const ValueId positions = context.parameter("weight", shape, normal_of(context.node()));
  context.replace_output(0, context.add("Add", "", {context.input(0), positions}, 1)[0]);
}

}  // namespace

void register_layers_token_layers(OpRegistry& registry) {
  const std::vector<OperandSpec> x = {{.name = "X", .lowered = true}}, y = {{.name = "Y", .lowered = true}};
  const AttributeSpec deviation =
      float_spec("deviation", 0.02, "of the normal distribution that the parameters start from");
  const auto add = [&](const char* name, const char* doc, std::vector<AttributeSpec> attributes, auto infer,
                       auto expand) {
    registry.add({.domain = "arbalest",
                  .name = name,
                  .doc = doc,
                  .inputs = x,
                  .outputs = y,
                  .attributes = std::move(attributes),
                  .layout = std::nullopt,
                  .infer = infer,
                  .expand = expand});
  };
  add("LayerNorm", "layer normalisation along one axis, with its own scale and bias",
      {int_spec("axis", -1, "of the channels that are normalised: -1 of tokens, 1 of images"),
       float_spec("epsilon", 1e-5, "added to the variance")},
      infer_layer_norm, expand_layer_norm);
  add("LayerScale", "X times a factor of its own for each channel",
      {int_spec("axis", -1, "of the channels: -1 of tokens, 1 of images"),
       float_spec("initial", 1e-6, "the factors at the start")},
      infer_layer_scale, expand_layer_scale);
  add("ClassToken", "a token of its own before the tokens (N, T, C) of each sample", {deviation}, infer_class_token,
      expand_class_token);
  add("Embedding", "for each index the row of its own table: words, categories",
      {required_spec("rows", AttributeKind::Int, "of the table: indices are 0 to rows − 1"),
       required_spec("units", AttributeKind::Int, "numbers of a row"),
       float_spec("deviation", 1, "of the normal distribution that the table starts from")},
      infer_embedding, expand_embedding);
  add("PositionEmbedding", "X plus numbers of its own, the same for each sample", {deviation}, infer_position_embedding,
      expand_position_embedding);
}

}  // namespace arbalest
