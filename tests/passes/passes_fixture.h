// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of tests of passes: looking into a graph, its soundness, and small nets.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "graph/field.h"
#include "graph/verify/check_sound.h"
#include "ops/builtin_ops.h"
#include "passes/program.h"
#include "tests/passes/net.h"

namespace arbalest::test {

inline std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.op->qualified_name());
  return names;
}

inline int64_t count_ops(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op->qualified_name() == op; });
}

inline const Value& value(const Graph& graph, std::string_view name) {
  const ValueId id = graph.find_value(name);
  INFO("value ", std::string(name));
  REQUIRE(id != kNone);
  return graph.values[id];
}

inline const Node& only(const Graph& graph, std::string_view op) {
  REQUIRE(count_ops(graph, op) == 1);
  return *std::find_if(graph.nodes.begin(), graph.nodes.end(),
                       [&](const Node& node) { return node.op->qualified_name() == op; });
}

// A graph of the folder examples, on images of its data set's size.
inline Graph example(std::string_view name) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  Graph graph = load_graph(fmt::format("{}/examples/{}.onnxtxt", root ? root : ".", name), builtin_ops());
  for (Node& node : graph.nodes) {
    if (node.op->name != "Prefetch") continue;
    const bool mnist = name == "lenet" || name == "mlp";
    node.attributes.set("source", "synthetic:");
    set_fields(node, {{"image", DataType::Uint8, mnist ? Shape{1, 28, 28} : Shape{3, 256, 256}},
                      {"label", DataType::Int32, {}, 10}});
  }
  verify(graph);
  return graph;
}

inline Graph expanded(const std::string& body) {
  Graph graph = net(body);
  expand_layers(graph);
  check_sound(graph);
  return graph;
}

inline Program program_of_net(const std::string& body, bool bf16 = false) {
  ProgramOptions options;
  options.bf16 = bf16;
  Program program = make_program(net(body), options);
  check_sound(program.training().graph);
  if (program.find(LoopRole::Validate)) check_sound(program.find(LoopRole::Validate)->graph);
  return program;
}

inline const std::string kHead = "logits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);
inline const std::string kResidual =
    "a = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (x)\n"
    "b = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], relu = 0> (a)\n"
    "s = Add (b, a)\n"
    "h = Relu (s)\n" +
    kHead;

}  // namespace arbalest::test
