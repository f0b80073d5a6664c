// SPDX-License-Identifier: Apache-2.0

// Backward and the update: gradients, and the arenas that parameters live in.

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "passes/autodiff.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/net.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

TEST_CASE("what flows back into a broadcast operand is summed over the axes of the broadcast") {
  const Program program = program_of_net("s = Mul (x, w)\nh = Add (v, s)\n" + kHead +
                                         "#initial float[2, 1, 1] w = {1, 2}, float v = {0.5}");
  const Graph& step = program.training().graph;
  CHECK(count_ops(step, "arbalest.SumTo") == 2);
  CHECK(value(step, "w.gradient").type == TensorType{DataType::Float32, {2, 1, 1}});
  CHECK(value(step, "v.gradient").type == TensorType{DataType::Float32, {}});
  CHECK(count_ops(step, "arbalest.AddGradA") == 0);
}

TEST_CASE("gradients of a value that is read twice are summed") {
  Graph graph = expanded(
      "c = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n"
      "r = Relu (c)\n"
      "h = Add (c, r)\n" +
      kHead);
  const ValueId weight = graph.find_value("c.weight"), loss = graph.find_value("loss");
  const NodeId before = graph.nodes.end_id();
  const auto gradients = add_gradients(graph, loss, std::vector<ValueId>{weight});
  check_sound(graph);
  REQUIRE(gradients.size() == 1);
  CHECK(graph.values[gradients[0]].type == graph.values[weight].type);
  int sums = 0;
  for (NodeId n = before; n < graph.nodes.end_id(); ++n) {
    CHECK(graph.nodes[n].stage == Stage::Backward);
    sums += graph.nodes[n].op->name == "Add";
  }
  CHECK(sums == 1);
}

TEST_CASE("an operator without a gradient is refused where a parameter reaches the loss through it") {
  Graph graph = expanded("c = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\nh = Relu (c)\n" + kHead);
  Node& relu = graph.nodes[graph.find_node("h")];
  Op without = *relu.op;
  without.grad = nullptr;
  relu.op = &without;
  const auto refusal = [&](const char* parameter) {
    const std::vector<ValueId> wrt = {graph.find_value(parameter)};
    return error_of([&] { add_gradients(graph, graph.find_value("loss"), wrt); });
  };
  CHECK(refusal("c.weight").find("node 'h' (Relu): the operator has no gradient") != std::string::npos);
  CHECK(refusal("logits.weight") == "");
}

TEST_CASE("gradients of what is no scalar, or depends on nothing, are refused") {
  Graph graph = expanded("h = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n" + kHead);
  const std::vector<ValueId> wrt = {graph.find_value("h.weight")};
  CHECK(error_of([&] { add_gradients(graph, graph.find_value("logits"), wrt); }).find("expected a scalar") !=
        std::string::npos);
  CHECK(error_of([&] { add_gradients(graph, graph.find_value("loss"), {}); }).find("depends on no parameter") !=
        std::string::npos);
}

TEST_CASE("weights, gradients and statistics are views of flat arenas") {
  const Program program = program_of_net(kResidual);
  const Graph& graph = program.training().graph;
  const ArenaValues& arenas = program.training().arenas;
  constexpr int64_t kAlign = 256;
  std::vector<std::pair<int64_t, NodeId>> finished;  // offset in the arena, node that makes the gradient
  for (const ValueId arena : {arenas.weights, arenas.gradients, arenas.statistics}) {
    REQUIRE(arena != kNone);
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const Value& member : graph.values) {
      // Values written in place (a carry's `next`) have no view of their own.
      if (member.view.base != arena) continue;
      CHECK(member.view.offset_bytes % kAlign == 0);
      ranges.emplace_back(member.view.offset_bytes, member.view.offset_bytes + member.type.bytes());
      if (arena == arenas.gradients) finished.emplace_back(member.view.offset_bytes, member.producer);
    }
    std::sort(ranges.begin(), ranges.end());
    CHECK(ranges.size() == (arena == arenas.statistics ? 4 : 8));
    for (size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
    CHECK(ranges.front().first == 0);
    CHECK(ranges.back().second <= graph.values[arena].type.bytes());
  }
  std::sort(finished.begin(), finished.end());
  for (size_t i = 1; i < finished.size(); ++i) CHECK(finished[i - 1].second <= finished[i].second);
  for (const char* name : {"a.conv.weight", "b.bn.bias", "logits.weight"}) {
    const Value &weight = value(graph, name), &gradient = value(graph, name + std::string(".gradient"));
    CHECK(weight.view.offset_bytes == gradient.view.offset_bytes);
    CHECK(weight.type == gradient.type);
  }
  const Node& update = only(graph, "arbalest.Sgd");
  CHECK(update.stage == Stage::Update);
  CHECK(update.inputs == std::vector<ValueId>{arenas.gradients, arenas.weights, arenas.slots.at(0).value});
  CHECK(float_attribute(update, "momentum") == 0.9);
}

TEST_CASE("a parameter that two operators read has one gradient, in float") {
  for (const bool bf16 : {false, true}) {
    const Program program = program_of_net(kShared, bf16);
    const Graph& graph = program.training().graph;
    const Value& gradient = value(graph, "w.gradient");
    CHECK(gradient.type == TensorType{DataType::Float32, value(graph, "w").type.shape});
    CHECK(gradient.view.base == program.training().arenas.gradients);
  }
}

TEST_CASE("parameters that are not float are refused, frozen ones too") {
  for (const char* trained : {"", ", frozen = [\"b\"]"}) {
    std::string loss = kLoss;
    loss.replace(loss.find("lr = 0.1"), 8, fmt::format("lr = 0.1{}", trained));
    const std::string message = error_of([&] {
      program_of_net(
          "a = arbalest.Linear <units = 3> (x)\nwide = Cast <to = 11> (a)\nsum = Add (wide, b)\n"
          "logits = Cast <to = 1> (sum)\n" +
          loss + "#initial double[3] b = {1, 2, 3}");
    });
    CHECK(message.find("net.onnxtxt:2:") == 0);
    CHECK(message.find("parameter 'b' is double[3], expected float") != std::string::npos);
  }
}

TEST_CASE("a parameter that does not reach the loss is an error") {
  const std::string message =
      error_of([] { program_of_net("idle = arbalest.Linear <units = 2> (x)\nh = Relu (x)\n" + kHead); });
  CHECK(message.find("node 'idle' (") != std::string::npos);  // the layer, not Train
  CHECK(message.find("'idle.weight' does not influence the loss 'loss'") != std::string::npos);
  CHECK(message.find("name it in Train's 'frozen'") != std::string::npos);
  std::string head = kHead;
  head.replace(head.find("lr = 0.1"), 8, "lr = 0.1, frozen = [\"idle.*\"]");
  CHECK_NOTHROW(program_of_net("idle = arbalest.Linear <units = 2> (x)\nh = Relu (x)\n" + head));
  const std::string none =
      error_of([] { program_of_net("p = GlobalAveragePool (x)\nlogits = Flatten (p)\n" + std::string(kLoss)); });
  CHECK(none.find("no parameters to train") != std::string::npos);
}
