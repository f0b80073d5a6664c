// SPDX-License-Identifier: Apache-2.0

// Layers: the parameters they own, how those start, and the operators they become.

#include <doctest/doctest.h>

#include <cmath>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "passes/passes.h"

using namespace arbalest;
using namespace arbalest::test;

namespace layers_test {
namespace {

// The graph of one layer "h1", expanded.
Graph expanded(const char* layer, const TensorType& x, const Attributes& attributes) {
  Case test(builtin_ops().get(layer), {x}, 1, attributes, "h1");
  test.graph.outputs = {test.get().outputs[0]};
  expand_layers(test.graph);
  for (const NodeId n : test.graph.nodes.ids()) infer(test.graph, n);
  return test.graph;
}

const Value& value(const Graph& graph, const char* name) {
  const ValueId id = graph.find_value(name);
  INFO("value ", name);
  REQUIRE(id != kNone);
  return graph.values[id];
}

std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op->qualified_name());
  return names;
}

TensorType image(const Shape& shape) {
  return {DataType::Float32, shape};
}

}  // namespace

TEST_CASE("a Conv layer is centred and starts as PyTorch's") {
  const Graph graph = expanded("arbalest.Conv", image({2, 3, 9, 9}),
                               {{"filters", int64_t{8}}, {"kernel_shape", std::vector<int64_t>{5, 3}}});
  CHECK(op_names(graph) == std::vector<std::string>{"Conv"});
  CHECK(value(graph, "h1").type.shape == Shape{2, 8, 9, 9});
  const Value &weight = value(graph, "h1.weight"), &bias = value(graph, "h1.bias");
  CHECK(weight.type.shape == Shape{8, 3, 5, 3});
  CHECK(weight.role == Role::Parameter);
  CHECK(weight.initializer.kind == Initializer::Kind::Uniform);
  CHECK(weight.initializer.a == doctest::Approx(1 / std::sqrt(45.0)));
  CHECK(bias.type.shape == Shape{8});
  CHECK(bias.initializer.kind == Initializer::Kind::Uniform);
  CHECK(bias.initializer.a == doctest::Approx(1 / std::sqrt(45.0)));
}

TEST_CASE("a Conv layer with groups, dilation and no bias") {
  const Graph graph = expanded("arbalest.Conv", image({2, 4, 9, 9}),
                               {{"filters", int64_t{8}},
                                {"kernel_shape", std::vector<int64_t>{3, 3}},
                                {"dilations", std::vector<int64_t>{2, 2}},
                                {"strides", std::vector<int64_t>{2, 2}},
                                {"group", int64_t{2}},
                                {"bias", int64_t{0}},
                                {"init", "normal:0.02"}});
  CHECK(value(graph, "h1").type.shape == Shape{2, 8, 5, 5});
  CHECK(value(graph, "h1.weight").type.shape == Shape{8, 2, 3, 3});
  CHECK(value(graph, "h1.weight").initializer.kind == Initializer::Kind::Normal);
  CHECK(value(graph, "h1.weight").initializer.a == doctest::Approx(0.02));
  CHECK(graph.find_value("h1.bias") == kNone);
}

TEST_CASE("a Linear layer flattens images") {
  const Graph graph =
      expanded("arbalest.Linear", image({2, 3, 4, 5}), {{"units", int64_t{7}}, {"init", "xavier_uniform"}});
  CHECK(op_names(graph) == std::vector<std::string>{"Flatten", "Gemm"});
  CHECK(value(graph, "h1").type.shape == Shape{2, 7});
  CHECK(value(graph, "h1.weight").type.shape == Shape{7, 60});
  CHECK(value(graph, "h1.weight").initializer.a == doctest::Approx(std::sqrt(6.0 / 67)));
  CHECK(value(graph, "h1.bias").initializer.kind == Initializer::Kind::Constant);
  CHECK(value(graph, "h1.bias").initializer.a == 0);
}

TEST_CASE("a Linear layer takes tokens one by one") {
  const Graph graph = expanded("arbalest.Linear", image({2, 9, 5}),
                               {{"units", int64_t{7}}, {"axis", int64_t{-1}}, {"init", "uniform:0.25"}});
  CHECK(op_names(graph) == std::vector<std::string>{"Reshape", "Gemm", "Reshape"});
  CHECK(value(graph, "h1").type.shape == Shape{2, 9, 7});
  CHECK(value(graph, "h1.weight").type.shape == Shape{7, 5});
  CHECK(value(graph, "h1.weight").initializer.kind == Initializer::Kind::Uniform);
  CHECK(value(graph, "h1.weight").initializer.a == 0.25);
  CHECK(value(graph, "h1.bias").initializer.a == 0);
  CHECK(value(expanded("arbalest.Linear", image({2, 3, 4, 5}), {{"units", int64_t{7}}, {"axis", int64_t{2}}}), "h1")
            .type.shape == Shape{2, 3, 7});
}

TEST_CASE("a LayerNorm layer normalises the last axis, or another one after moving it there") {
  const Graph tokens = expanded("arbalest.LayerNorm", image({2, 9, 5}), {{"epsilon", 0.01}});
  CHECK(op_names(tokens) == std::vector<std::string>{"LayerNormalization"});
  CHECK(float_attribute(tokens.nodes[0], "epsilon") == 0.01);
  CHECK(value(tokens, "h1.weight").type.shape == Shape{5});
  CHECK(value(tokens, "h1.weight").initializer.a == 1);
  CHECK(value(tokens, "h1.bias").initializer.a == 0);
  const Graph pixels = expanded("arbalest.LayerNorm", image({2, 3, 4, 5}), {{"axis", int64_t{1}}});
  CHECK(op_names(pixels) == std::vector<std::string>{"Transpose", "LayerNormalization", "Transpose"});
  CHECK(value(pixels, "h1").type.shape == Shape{2, 3, 4, 5});
  CHECK(value(pixels, "h1.weight").type.shape == Shape{3});
}

TEST_CASE("a LayerScale layer has a factor for each channel") {
  const Graph tokens = expanded("arbalest.LayerScale", image({2, 9, 5}), {{"initial", 0.1}});
  CHECK(op_names(tokens) == std::vector<std::string>{"Mul"});
  CHECK(value(tokens, "h1.weight").type.shape == Shape{5});
  CHECK(value(tokens, "h1.weight").initializer.a == 0.1);
  const Graph pixels = expanded("arbalest.LayerScale", image({2, 3, 4, 5}), {{"axis", int64_t{1}}});
  CHECK(op_names(pixels) == std::vector<std::string>{"Reshape", "Mul"});
  CHECK(value(pixels, "h1.weight").type.shape == Shape{3});
  CHECK(value(pixels, "h1.factors").type.shape == Shape{3, 1, 1});
  CHECK(value(pixels, "h1").type.shape == Shape{2, 3, 4, 5});
}

TEST_CASE("ClassToken puts a token before the others, PositionEmbedding adds to all; both fit any batch") {
  const Graph classed = expanded("arbalest.ClassToken", image({2, 9, 5}), {{"deviation", 0.5}});
  CHECK(op_names(classed) == std::vector<std::string>{"Pad", "Pad", "Add"});
  CHECK(value(classed, "h1").type.shape == Shape{2, 10, 5});
  CHECK(value(classed, "h1.place").type.shape == Shape{1, 10, 5});
  CHECK(ints_attribute(classed.nodes[0], "pads") == std::vector<int64_t>{0, 0, 0, 0, 9, 0});
  CHECK(ints_attribute(classed.nodes[1], "pads") == std::vector<int64_t>{0, 1, 0, 0, 0, 0});
  CHECK(value(classed, "h1.weight").type.shape == Shape{1, 1, 5});
  CHECK(value(classed, "h1.weight").initializer.kind == Initializer::Kind::Normal);
  CHECK(value(classed, "h1.weight").initializer.a == 0.5);
  const Graph placed = expanded("arbalest.PositionEmbedding", image({2, 9, 5}), {});
  CHECK(op_names(placed) == std::vector<std::string>{"Add"});
  CHECK(value(placed, "h1.weight").type.shape == Shape{1, 9, 5});
  CHECK(value(placed, "h1.weight").initializer.a == 0.02);
}

TEST_CASE("Embedding owns a table, and takes a row for each index") {
  const Attributes attributes{{"rows", int64_t{20}}, {"units", int64_t{32}}};
  const Graph graph = expanded("arbalest.Embedding", {DataType::Int32, {2, 9}}, attributes);
  CHECK(op_names(graph) == std::vector<std::string>{"Gather"});
  CHECK(value(graph, "h1").type.shape == Shape{2, 9, 32});
  CHECK(value(graph, "h1.weight").type.shape == Shape{20, 32});
  CHECK(value(graph, "h1.weight").role == Role::Parameter);
  CHECK(value(graph, "h1.weight").initializer.kind == Initializer::Kind::Normal);
  CHECK(value(graph, "h1.weight").initializer.a == 1);
  CHECK_THROWS_WITH_AS(expanded("arbalest.Embedding", image({2, 9}), attributes),
                       doctest::Contains("expected int32 or int64"), GraphError);
  CHECK_THROWS_WITH_AS(
      expanded("arbalest.Embedding", {DataType::Int32, {2}}, {{"rows", int64_t{0}}, {"units", int64_t{1}}}),
      doctest::Contains("attribute 'rows' is 0; expected at least 1"), GraphError);
}

TEST_CASE("ConvBnRelu owns filters, scale, bias and carried running statistics") {
  const Attributes attributes{{"filters", int64_t{16}}, {"kernel_shape", std::vector<int64_t>{3, 3}}};
  const Graph graph = expanded("arbalest.ConvBnRelu", image({2, 3, 8, 8}), attributes);
  CHECK(op_names(graph) == std::vector<std::string>{"Conv", "arbalest.BatchNormTraining", "Relu"});
  CHECK(value(graph, "h1").type.shape == Shape{2, 16, 8, 8});
  CHECK(value(graph, "h1.conv.weight").initializer.kind == Initializer::Kind::Normal);
  CHECK(value(graph, "h1.conv.weight").initializer.a == doctest::Approx(std::sqrt(2.0 / (16 * 9))));
  CHECK(value(graph, "h1.bn.weight").initializer.a == 1);
  CHECK(value(graph, "h1.bn.weight").role == Role::Parameter);
  CHECK(value(graph, "h1.bn.bias").initializer.a == 0);
  CHECK(value(graph, "h1.bn.running_mean").role == Role::State);
  CHECK(value(graph, "h1.bn.running_var").initializer.a == 1);
  REQUIRE(graph.carries.size() == 2);
  CHECK(graph.carries[0].current == graph.find_value("h1.bn.running_mean"));
  CHECK(graph.carries[1].current == graph.find_value("h1.bn.running_var"));
  const Node& norm = graph.nodes[1];
  CHECK(graph.carries[0].next == norm.outputs[1]);
  CHECK(graph.carries[1].next == norm.outputs[2]);

  Attributes without = attributes;
  without.set("relu", int64_t{0});
  CHECK(op_names(expanded("arbalest.ConvBnRelu", image({2, 3, 8, 8}), without)) ==
        std::vector<std::string>{"Conv", "arbalest.BatchNormTraining"});
}

TEST_CASE("a BatchNorm layer takes matrices") {
  const Graph graph = expanded("arbalest.BatchNorm", image({4, 6}), {{"momentum", 0.2}});
  CHECK(op_names(graph) == std::vector<std::string>{"arbalest.BatchNormTraining"});
  CHECK(float_attribute(graph.nodes[0], "momentum") == doctest::Approx(0.2));
  CHECK(value(graph, "h1.running_mean").type.shape == Shape{6});
}

TEST_CASE("ONNX's BatchNormalization becomes the training or the inference form") {
  const TensorType x = image({2, 3, 4, 4}), c = image({3});
  Case inference(builtin_ops().get("BatchNormalization"), {x, c, c, c, c}, 1, {});
  expand_layers(inference.graph);
  CHECK(op_names(inference.graph) == std::vector<std::string>{"arbalest.BatchNormInference"});

  Case training(builtin_ops().get("BatchNormalization"), {x, c, c, c, c}, 3,
                {{"training_mode", int64_t{1}}, {"momentum", 0.8}});
  const std::vector<ValueId> inputs = training.get().inputs;
  expand_layers(training.graph);
  CHECK(op_names(training.graph) == std::vector<std::string>{"arbalest.BatchNormTraining"});
  CHECK(float_attribute(training.graph.nodes[0], "momentum") == doctest::Approx(0.2));  // PyTorch's sense
  REQUIRE(training.graph.carries.size() == 2);
  CHECK(training.graph.carries[0].current == inputs[3]);
  CHECK(training.graph.carries[1].current == inputs[4]);
}

TEST_CASE("layers: Dropout drops in training, as ONNX's does with training_mode, and nothing in inference") {
  const TensorType x{DataType::Float32, {4, 25}};
  Graph layer = expanded("arbalest.Dropout", x, {{"ratio", 0.25}, {"seed", int64_t{3}}});
  REQUIRE(op_names(layer) == std::vector<std::string>{"Dropout"});
  CHECK(layer.nodes[0].name == "h1");  // draws go by it
  CHECK(float_attribute(layer.nodes[0], "ratio") == 0.25);
  CHECK(int_attribute(layer.nodes[0], "seed") == 3);
  CHECK(int_attribute(layer.nodes[0], "training_mode") == 1);
  layer.nodes[0].op->for_inference(layer, 0);
  CHECK(op_names(layer) == std::vector<std::string>{"Identity"});
}

}  // namespace layers_test
