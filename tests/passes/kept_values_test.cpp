// SPDX-License-Identifier: Apache-2.0

// The values that the forward pass keeps for the backward pass, in which form, and that programs compute the same.

#include <doctest/doctest.h>

#include <set>

#include "tests/passes/in_double.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace kept_values_test {
namespace {

Program made(const std::string& body, const std::set<std::string>& without) {
  ProgramOptions options{.generated_kernels = true};
  options.without = without;
  Program program = make_program(net(body), options);
  for (const Loop& loop : program.loops) check_sound(loop.graph);
  return program;
}

// The values of the forward pass that later nodes read, of at least so many elements.
std::set<std::string> kept(const Program& program, int64_t least) {
  const Graph& graph = program.training().graph;
  std::set<std::string> names;
  for (const Node& node : graph.nodes) {
    if (node.stage == Stage::Forward) continue;
    for (const ValueId input : node.inputs) {
      if (input == kNone || graph.values[input].role != Role::Activation) continue;
      const NodeId producer = graph.values[input].producer;
      if (producer == kNone || graph.nodes[producer].stage != Stage::Forward) continue;
      if (graph.values[input].type.elements() >= least) names.insert(graph.values[input].name);
    }
  }
  return names;
}

void check_same_without(const std::string& body, const std::set<std::string>& without) {
  check_same(train(made(body, without), 3), train(made(body, {}), 3));
}

}  // namespace

TEST_CASE("kept values: a gated layer keeps what its activation reads, and neither that nor the halves") {
  const std::string body =
      "tokens = Reshape <shape = [0, 9, 8]> (x)\nwide = arbalest.Linear <units = 32, axis = -1> (tokens)\n"
      "e = Erf (wide)\ng = Mul (wide, e)\n"
      "u = Slice <starts = [0], ends = [16], axes = [2]> (g)\nv = Slice <starts = [16], ends = [32], axes = [2]> (g)\n"
      "n = LayerNormalization (v, weight)\nm = Mul (u, n)\nh = Flatten (m)\n" +
      kHead + "#initial float[16] weight = {" + numbers(16) + "}";
  const auto keeps = [](const std::set<std::string>& names, const std::string& name) { return names.contains(name); };
  const std::set<std::string> before = kept(made(body, {"compute_parts"}), 4 * 9 * 16);
  CHECK(keeps(before, "v"));
  const std::set<std::string> now = kept(made(body, {}), 4 * 9 * 16);
  INFO(fmt::format("{}", fmt::join(now, ", ")));
  CHECK(!keeps(now, "g"));
  CHECK(!keeps(now, "u"));
  CHECK(!keeps(now, "v"));
  CHECK(now.size() < before.size());
  check_same_without(body, {"compute_parts"});
  // A reader of the whole needs it, and halves of what two tensors make would read more.
  const std::string whole = body.substr(0, body.find("h = Flatten")) +
                            "a = Flatten (m)\nb = Flatten (g)\nh = Concat <axis = 1> (a, b)\n" +
                            body.substr(body.find("logits"));
  const auto nodes = [](const std::string& of, const std::set<std::string>& without) {
    return op_names(made(of, without).training().graph);
  };
  CHECK(nodes(whole, {}) == nodes(whole, {"compute_parts"}));
  std::string two = body;
  two.replace(two.find("e = Erf (wide)"), 14, "o = arbalest.Linear <units = 32, axis = -1> (tokens)\ne = Erf (o)");
  CHECK(nodes(two, {}) == nodes(two, {"compute_parts"}));
  // An elementwise gradient that reads the half comes before the norm's.
  std::string early = body;
  early.replace(early.find("m = Mul (u, n)"), 14, "q = Mul (n, v)\nm = Mul (u, q)");
  check_same_without(early, {"compute_parts"});
}

TEST_CASE("kept values: halves of a Split are computed from halves, too") {
  const std::string body =
      "tokens = Reshape <shape = [0, 9, 8]> (x)\nwide = arbalest.Linear <units = 32, axis = -1> (tokens)\n"
      "e = Erf (wide)\ng = Mul (wide, e)\nu, v = Split <axis = 2, num_outputs = 2> (g)\n"
      "n = LayerNormalization (v, weight)\nm = Mul (u, n)\nh = Flatten (m)\n" +
      kHead + "#initial float[16] weight = {" + numbers(16) + "}";
  CHECK(!kept(made(body, {}), 4 * 9 * 16).contains("g"));
  CHECK(!kept(made(body, {}), 4 * 9 * 16).contains("v"));
  check_same_without(body, {"compute_parts"});
}

TEST_CASE("kept values: Relu's gradient reads a multiple that a convolution's gradient reads as well") {
  const auto body = [](const char* factor) {
    return fmt::format(
               "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n"
               "p = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\ns = Add (c, p)\nr = Relu (s)\n"
               "f = Constant <value_float = {}> ()\nt = Mul (r, f)\n"
               "d = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (t)\nh = GlobalAveragePool (d)\n",
               factor) +
           kHead;
  };
  CHECK(kept(made(body("1.7"), {}), 4 * 4 * 16) == std::set<std::string>{"t", "x"});
  CHECK(kept(made(body("1.7"), {"read_kept_signs"}), 4 * 4 * 16).size() == 3);
  check_same_without(body("1.7"), {"read_kept_signs"});
  // Neither a negative factor nor one that may take a small number to 0 will do.
  for (const char* factor : {"-1.7", "0.0", "1e-9"}) {
    INFO(factor);
    CHECK(kept(made(body(factor), {}), 4 * 4 * 16).size() == 3);
  }
}

TEST_CASE("kept values: Relu after a batch norm is computed again where regions alone read it") {
  const std::string body =
      "a = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\np = GlobalAveragePool (a)\n"
      "e = arbalest.Conv <filters = 8, kernel_shape = [1, 1]> (p)\ng = Sigmoid (e)\nm = Mul (a, g)\n"
      "d = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (m)\nh = GlobalAveragePool (d)\n" +
      kHead;
  const std::set<std::string> before = kept(made(body, {"open_batch_norms"}), 4 * 8 * 36);
  const std::set<std::string> now = kept(made(body, {}), 4 * 8 * 36);
  INFO(fmt::format("{} and {}", fmt::join(before, ", "), fmt::join(now, ", ")));
  CHECK(now.size() == before.size() - 1);
  CHECK(now.contains("m"));
  check_same_without(body, {"open_batch_norms"});
  // A convolution needs what Relu makes, so its own kernel makes it.
  const std::string plain =
      "a = arbalest.ConvBnRelu <filters = 8, kernel_shape = [3, 3]> (x)\ng = Sigmoid (a)\n"
      "d = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (a)\n"
      "p = GlobalAveragePool (g)\nq = GlobalAveragePool (d)\n"
      "r = Concat <axis = 1> (p, q)\nh = Flatten (r)\n" +
      kHead;
  CHECK(count_ops(made(plain, {}).training().graph, "arbalest.BatchNormTraining") == 1);
}

}  // namespace kept_values_test
