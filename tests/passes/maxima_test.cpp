// SPDX-License-Identifier: Apache-2.0

// The positions of maxima are kept for their gradient.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "graph/op.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace maxima_test {
namespace {

Graph step_of(const std::string& pool) {
  const std::string body = "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n" + pool;
  Graph step = program_of_net(body + kHead).training().graph;
  check_sound(step);
  return step;
}

// The number of nodes after the forward pass that read the value.
int64_t readers_behind(const Graph& graph, ValueId value) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.stage != Stage::Forward &&
           std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
  });
}

}  // namespace

TEST_CASE("a max-pool keeps where its maxima are, and no image for its gradient") {
  const Graph step = step_of("h = MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 0]> (c)\n");
  CHECK(count_ops(step, "MaxPool") == 0);
  CHECK(count_ops(step, "arbalest.MaxPoolGrad") == 0);
  const Node& pool = only(step, "arbalest.MaxPoolTaps");
  const Node& gradient = only(step, "arbalest.MaxPoolTapsGrad");
  CHECK(pool.name == "h");
  CHECK(pool.outputs[0] == step.find_value("h"));
  REQUIRE(pool.outputs.size() == 2);
  const TensorType& y = value(step, "h").type;
  const TensorType& taps = step.values[pool.outputs[1]].type;
  CHECK(taps.dtype == DataType::Uint8);
  CHECK(taps.shape == y.shape);
  CHECK(taps.layout == y.layout);
  CHECK(gradient.inputs == std::vector<ValueId>{gradient.inputs[0], pool.outputs[1]});
  const Shape& image = value(step, "c").type.shape;
  CHECK(ints_attribute(gradient, "image") == std::vector<int64_t>(image.begin() + 2, image.end()));
  CHECK(ints_attribute(gradient, "kernel_shape") == std::vector<int64_t>{3, 2});
  CHECK(ints_attribute(gradient, "pads") == std::vector<int64_t>{1, 0, 1, 0});
  CHECK(readers_behind(step, step.find_value("c")) == 0);
}

TEST_CASE("a Relu before a max-pool masks windows, and the image between is not kept") {
  for (const int bias : {0, 1}) {
    INFO(bias);
    const std::string conv =
        fmt::format("c = arbalest.Conv <filters = 4, kernel_shape = [3, 3], bias = {}> (x)\nr = Relu (c)\n", bias);
    const std::string pool = "h = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (r)\n";
    const Graph step = program_of_net(conv + pool + kHead).training().graph;
    check_sound(step);
    const Node& relu = only(step, bias == 1 ? "arbalest.ReluGradSums" : "arbalest.ReluGrad");
    const Node& gradient = only(step, "arbalest.MaxPoolTapsGrad");
    CHECK(relu.inputs[1] == step.find_value("h"));
    CHECK(gradient.inputs[0] == relu.outputs[0]);
    CHECK(step.values[relu.outputs[0]].type == value(step, "h").type);
    CHECK(step.values[gradient.outputs[0]].type == value(step, "r").type);
    CHECK(only(step, "arbalest.ConvGradWeight").inputs[1] == gradient.outputs[0]);
    CHECK(readers_behind(step, step.find_value("r")) == 0);
  }
}

TEST_CASE("a Relu with another reader masks its own image, and sums for a bias are over windows") {
  const Graph shared = step_of("r = Relu (c)\nq = MaxPool <kernel_shape = [1, 1]> (r)\nh = Add (q, r)\n");
  const Node& relu = only(shared, "arbalest.ReluGradSums");
  CHECK(relu.inputs[1] == shared.find_value("r"));
  CHECK(only(shared, "arbalest.MaxPoolTapsGrad").inputs[0] != relu.outputs[0]);
  CHECK(readers_behind(shared, shared.find_value("r")) == 1);
  for (const int dilation : {1, 2}) {  // dilated windows may miss the image
    INFO(dilation);
    const Graph plain = step_of(
        fmt::format("h = MaxPool <kernel_shape = [2, 2], strides = [2, 2], dilations = [{0}, {0}]> (c)\n", dilation));
    const Node& gradient = only(plain, "arbalest.MaxPoolTapsGrad");
    const ValueId summed = dilation == 1 ? gradient.inputs[0] : gradient.outputs[0];
    CHECK(std::any_of(plain.nodes.begin(), plain.nodes.end(), [&](const Node& node) {
      return node.op->qualified_name() == "arbalest.ChannelSum" && node.inputs[0] == summed;
    }));
  }
}

TEST_CASE("maxima are found again where a byte cannot number them, or the graph reads their indices") {
  for (const char* pool : {"h = MaxPool <kernel_shape = [16, 16], pads = [8, 8, 8, 8]> (c)\n",
                           "h, places = MaxPool <kernel_shape = [2, 2]> (c)\nread = Cast <to = 1> (places)\n"}) {
    INFO(pool);
    const Graph step = step_of(pool);
    CHECK(count_ops(step, "arbalest.MaxPoolTaps") == 0);
    CHECK(count_ops(step, "MaxPool") == 1);
    CHECK(readers_behind(step, step.find_value("c")) == 1);
    CHECK(only(step, "arbalest.MaxPoolGrad").inputs[1] == step.find_value("c"));
  }
}

}  // namespace maxima_test
