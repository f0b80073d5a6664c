// SPDX-License-Identifier: Apache-2.0

// RNN, GRU and LSTM become the operators of their steps, in training and with validation's batches. The vectors of
// tests/ops/vectors judge the numbers.

#include <doctest/doctest.h>

#include "passes/program.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/net.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace recurrent_test {
namespace {

// Six steps of twelve features, the samples first or second, and a layer of four elements, whose states h has.
std::string layer(const std::string& op, int gates, const std::string& attributes, int directions = 1,
                  bool samples_first = false, bool biased = false) {
  std::string body = "rows = Transpose <perm = [0, 2, 1, 3]> (x)\nsteps = Reshape <shape = [0, 6, 12]> (rows)\n";
  if (!samples_first) body += "turned = Transpose <perm = [1, 0, 2]> (steps)\n";
  const std::string x = samples_first ? "steps" : "turned";
  body += fmt::format("y = {} <{}> ({}, w, r{})\n", op, attributes, x, biased ? ", b" : "");
  body += fmt::format("s = Transpose <perm = [{}]> (y)\n", samples_first ? "0, 1, 2, 3" : "2, 0, 1, 3");
  body += fmt::format("h = Reshape <shape = [0, {}]> (s)\n", 6 * directions * 4);
  return body + "logits = arbalest.Linear <units = 3> (h)\n" + kLoss +
         fmt::format("#initial float[{0}, {1}, 12] w = {{{2}}}, float[{0}, {1}, 4] r = {{{3}}}", directions, 4 * gates,
                     numbers(directions * 4 * gates * 12), numbers(directions * 4 * gates * 4)) +
         (biased ? fmt::format(", float[{}, {}] b = {{{}}}", directions, 8 * gates, numbers(directions * 8 * gates))
                 : "");
}

}  // namespace

TEST_CASE("recurrent layers are the operators of their steps, whatever the batch") {
  struct Case {
    std::string op;
    int gates;
    std::string attributes;
    int directions;
    bool samples_first;
  };
  for (const Case& c :
       {Case{"RNN", 1, "hidden_size = 4", 1, false}, Case{"GRU", 3, "layout = 1, hidden_size = 4", 1, true},
        Case{"GRU", 3, "direction = \"bidirectional\"", 2, false}, Case{"LSTM", 4, "direction = \"reverse\"", 1, false},
        Case{"LSTM", 4, "layout = 1, direction = \"bidirectional\"", 2, true}}) {
    INFO(c.op, " ", c.attributes);
    const Program program = make_program(net(layer(c.op, c.gates, c.attributes, c.directions, c.samples_first)), {});
    for (const Loop& loop : program.loops) {
      const Graph& graph = loop.graph;
      check_sound(graph);
      CHECK(count_ops(graph, c.op) == 0);
      const Shape expected =
          c.samples_first ? Shape{loop.batch, 6, c.directions, 4} : Shape{6, c.directions, loop.batch, 4};
      CHECK(graph.values[graph.find_value("y")].type.shape == expected);
    }
  }
}

TEST_CASE("the gradient of a matrix that all steps read is one product") {
  const auto products = [](const std::string& body, std::set<std::string> without) {
    const Program program = make_program(net(body), {.fused_kernels = true, .without = std::move(without)});
    return count_ops(program.training().graph, "arbalest.GemmGradB");
  };
  const int64_t others = 2;  // w and the classes
  const std::string lstm = layer("LSTM", 4, "");
  CHECK(products(lstm, {"fuse_weight_gradients"}) == 5 + others);  // the first step has no state
  CHECK(products(lstm, {}) == 1 + others);
  const std::string gru = layer("GRU", 3, "");  // the gates and the new state apart
  CHECK(products(gru, {"fuse_weight_gradients"}) == 2 * 5 + others);
  CHECK(products(gru, {}) == 2 + others);
  // A bias within the reset gate's product: one sum over the rows of all steps.
  const auto sums = [](std::set<std::string> without) {
    const Program program = make_program(net(layer("GRU", 3, "linear_before_reset = 1", 1, false, true)),
                                         {.fused_kernels = true, .without = std::move(without)});
    return count_ops(program.training().graph, "arbalest.ChannelSum");
  };
  CHECK(sums({"fuse_weight_gradients"}) - sums({}) == 4);
}

TEST_CASE("a recurrent layer that cannot be is refused") {
  const auto refusal = [](const std::string& op, int gates, const std::string& attributes) {
    return error_of([&] { net(layer(op, gates, attributes)); });
  };
  const auto has = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != text.npos, text, "\nhas no: ", part);
  };
  has(refusal("LSTM", 3, ""),
      "input 'R' is float[1,12,4]; expected float[1,16,4], for 4 gates and states of 4 elements, as the last axis of "
      "'R' has");
  has(refusal("GRU", 3, "hidden_size = 5"),
      "expected float[1,15,5], for 3 gates and states of 5 elements, as 'hidden_size' says");
  has(refusal("GRU", 3, "direction = \"bidirectional\""), "expected float[2,12,4]");
  has(refusal("RNN", 1, "direction = \"backward\""),
      "attribute 'direction' is \"backward\"; expected one of forward, reverse");
  has(refusal("RNN", 1, "activations = [\"Tanh\", \"Tanh\"]"),
      "'activations' has 2 names; expected 1, as of Tanh in each direction");
  has(refusal("RNN", 1, "activations = [\"Elu\"]"), "'activations' names 'Elu'; expected Relu, Sigmoid");
  has(refusal("RNN", 1, "clip = 2.0"), "attribute 'clip' is not supported");
  has(refusal("RNN", 1, "layout = 2"), "attribute 'layout' is 2");
}

}  // namespace recurrent_test
