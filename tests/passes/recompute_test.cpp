// SPDX-License-Identifier: Apache-2.0

// Values of the forward pass that are computed once more in the backward pass.

#include "passes/recompute.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace recompute_test {
namespace {

// The step with these values computed again.
Graph again(Graph graph, const std::vector<std::string>& names) {
  Table<NodeId, bool> chosen(graph.nodes.size(), false);
  for (const std::string& name : names) chosen[value(graph, name).producer] = true;
  recompute(graph, chosen);
  check_sound(graph);
  return graph;
}

Graph step_of(const std::string& body) {
  return program_of_net(body).training().graph;
}

std::vector<std::string> readers(const Graph& graph, std::string_view name) {
  std::vector<std::string> names;
  const auto consumers = graph.consumers();
  for (const NodeId reader : consumers[graph.find_value(name)]) {
    names.push_back(graph.nodes[reader].name);
  }
  return names;
}

}  // namespace

TEST_CASE("a batch norm is computed again by what it has saved, for those that read it in the backward pass") {
  const Graph before = step_of(kResidual);
  REQUIRE(readers(before, "a").size() > 2);
  const Graph graph = again(before, {"a"});
  CHECK(graph.nodes.size() == before.nodes.size() + 1);
  const Node& copy = only(graph, "arbalest.BatchNormAgain");
  CHECK(copy.name == "a.bn again");
  CHECK(copy.stage == Stage::Backward);
  CHECK(int_attribute(copy, "relu") == 1);
  CHECK(value(graph, "a again").type == value(graph, "a").type);
  for (const std::string& reader : readers(graph, "a")) {
    CHECK(graph.nodes[graph.find_node(reader)].stage == Stage::Forward);
  }
  // Right before the first of its readers.
  const std::vector<std::string> later = readers(graph, "a again");
  REQUIRE(!later.empty());
  CHECK(graph.find_node(later[0]) == graph.find_node("a.bn again") + 1);
  // Running statistics are written once.
  CHECK(graph.carries.size() == before.carries.size());
  for (const ValueId input : copy.inputs) CHECK(graph.values[input].role != Role::State);
}

TEST_CASE("two batch norms as one node are computed again by what both have saved") {
  ProgramOptions options;
  options.fused_kernels = true;
  const Graph before = make_program(net("b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], relu = 0> (x)\n"
                                        "p = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (x)\n"
                                        "s = Add (b, p)\nr = Relu (s)\nh = GlobalAveragePool (r)\n" +
                                        kHead),
                                    options)
                           .training()
                           .graph;
  const Graph graph = again(before, {"r"});
  const Node& copy = only(graph, "arbalest.BatchNormPairAgain");
  CHECK(copy.inputs.size() == 10);
  CHECK(only(graph, "arbalest.BatchNormPairGrad").inputs[1] == copy.outputs[0]);
  CHECK(graph.carries.size() == before.carries.size());
}

TEST_CASE("what is computed again reads what is computed again") {
  const Graph graph = again(step_of(kResidual), {"a", "h"});  // h adds a
  const NodeId last = value(graph, "h again").producer;
  const Node& h = graph.nodes[last];
  CHECK(h.inputs.at(5) == graph.find_value("a again"));
  CHECK(value(graph, "a again").producer + 1 == last);
  for (const std::string& reader : readers(graph, "h")) {
    CHECK(graph.nodes[graph.find_node(reader)].stage == Stage::Forward);
  }
}

TEST_CASE("what nothing needs again stays as it is, and so does what must not be done twice") {
  const std::string body =
      "d = Dropout <ratio = 0.5, training_mode = 1> (x)\n"
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (d)\nh = Relu (c)\n" +
      kHead;
  const Graph before = step_of(body);
  const Repetitions repetitions(before);
  for (const NodeId n : before.nodes.ids()) {
    const Node& node = before.nodes[n];
    const Repetition& of = repetitions.of(n);
    INFO(node.name);
    const std::string op = node.op->qualified_name();
    if (node.stage != Stage::Forward || op == "arbalest.Augment" || op == "arbalest.Tally") CHECK(!of.op);
    if (op == "Dropout") {
      REQUIRE(of.op);
      CHECK(of.op->qualified_name() == "arbalest.DropoutGrad");
      CHECK(std::get<std::string>(*of.attributes.find("node")) == node.name);
    }
  }
  Table<NodeId, bool> all(before.nodes.size(), true);
  Graph graph = before;
  recompute(graph, all);
  check_sound(graph);
  CHECK(count_ops(graph, "arbalest.SoftmaxCrossEntropy") == 1);  // the backward pass reads nothing of it
  CHECK(count_ops(graph, "arbalest.Augment") == 1);
  CHECK(graph.find_node("d again") != kNone);
  Graph same = before;
  recompute(same, Table<NodeId, bool>(before.nodes.size(), false));
  CHECK(op_names(same) == op_names(before));
}

}  // namespace recompute_test
