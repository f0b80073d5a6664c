// SPDX-License-Identifier: Apache-2.0

// Relu within the convolution or the product that it follows.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "graph/op.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace relu_test {
namespace {

Graph fused(const std::string& body) {
  Graph graph = expanded(body);
  fuse_batch_norm(graph);
  fuse_relu(graph);
  check_sound(graph);
  return graph;
}

}  // namespace

TEST_CASE("a convolution takes in the Relu after it, with a bias and without") {
  for (const int bias : {0, 1}) {
    const Graph graph = fused(
        fmt::format("c = arbalest.Conv <filters = 4, kernel_shape = [3, 3], bias = {}> (x)\nh = Relu (c)\n", bias) +
        kHead);
    CHECK(count_ops(graph, "Relu") == 0);
    CHECK(count_ops(graph, "Conv") == 0);
    const Node& conv = only(graph, "arbalest.ConvRelu");
    CHECK(conv.name == "c");
    CHECK(conv.inputs.size() == size_t(2 + bias));
    CHECK(conv.outputs[0] == graph.find_value("h"));
    CHECK(ints_attribute(conv, "pads") == std::vector<int64_t>{1, 1, 1, 1});
  }
}

TEST_CASE("a Relu stays whose input has another reader, or comes from elsewhere") {
  const std::string conv = "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n";
  for (const std::string& body : {conv + "r = Relu (c)\nh = Add (r, c)\n", conv + "p = Identity (c)\nh = Relu (p)\n"}) {
    INFO(body);
    const Graph graph = fused(body + kHead);
    CHECK(count_ops(graph, "Relu") == 1);
    CHECK(count_ops(graph, "Conv") == 1);
  }
}

TEST_CASE("Relu belongs to the batch norm before it, and a convolution with Relu leaves a batch norm no statistics") {
  const Graph graph = fused("h = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n" + kHead);
  CHECK(count_ops(graph, "arbalest.ConvRelu") == 0);
  CHECK(int_attribute(only(graph, "arbalest.BatchNormTraining"), "relu") == 1);

  const auto step_of = [](const std::string& end) {
    ProgramOptions options;
    options.fused_kernels = true;
    return make_program(net("a = arbalest.Conv <filters = 16, kernel_shape = [3, 3]> (x)\n"
                            "c = arbalest.Conv <filters = 16, kernel_shape = [3, 3], bias = 0> (a)\n" +
                            end + kHead),
                        options)
        .training()
        .graph;
  };
  CHECK(count_ops(step_of("h = arbalest.BatchNorm (c)\n"), "arbalest.ConvStatistics") == 1);
  const Graph between = step_of("r = Relu (c)\nh = arbalest.BatchNorm (r)\n");
  CHECK(count_ops(between, "arbalest.ConvStatistics") == 0);
  CHECK(count_ops(between, "arbalest.ConvRelu") == 1);
}

TEST_CASE("the node that masks the gradient leaves the bias its own, where that is trained") {
  const auto step_of = [](const std::string& conv, const std::string& train) {
    std::string body = "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]" + conv + "> (x)\nh = Relu (c)\n" + kHead;
    const size_t at = body.find("Train <");
    body.insert(at + 7, train);
    return program_of_net(body).training().graph;
  };
  const Graph biased = step_of("", "");
  const Node& masked = only(biased, "arbalest.ReluGradSums");
  CHECK(masked.inputs[1] == biased.find_value("h"));
  CHECK(count_ops(biased, "arbalest.ReluGrad") == 0);
  CHECK(count_ops(biased, "arbalest.ChannelSum") == 1);  // of the logits
  CHECK(only(biased, "arbalest.ConvGradWeight").inputs[1] == masked.outputs[0]);
  CHECK(biased.values[masked.outputs[1]].view.base != kNone);  // in the arena of gradients

  for (const Graph& plain : {step_of(", bias = 0", ""), step_of("", "frozen = [\"c.bias\"], ")}) {
    CHECK(count_ops(plain, "arbalest.ConvRelu") == 1);
    CHECK(count_ops(plain, "arbalest.ReluGrad") == 1);
    CHECK(count_ops(plain, "arbalest.ReluGradSums") == 0);
  }
}

TEST_CASE("of the examples without batch norms only products keep a Relu after them") {
  struct Counts {
    const char* name;
    int64_t convolutions, others;
  };
  for (const Counts& counts : {Counts{"vgg16", 13, 2}, Counts{"lenet", 0, 1}, Counts{"mlp", 0, 2}}) {
    INFO(std::string(counts.name));
    const Program program = make_program(example(counts.name), {});
    for (const Loop& loop : program.loops) {
      check_sound(loop.graph);
      CHECK(count_ops(loop.graph, "Relu") == counts.others);
      CHECK(count_ops(loop.graph, "arbalest.ConvRelu") == counts.convolutions);
    }
    const Graph& step = program.training().graph;
    CHECK(count_ops(step, "arbalest.ReluGradSums") == counts.convolutions);
    CHECK(count_ops(step, "arbalest.ReluGrad") == counts.others);
  }
}

}  // namespace relu_test
