// SPDX-License-Identifier: Apache-2.0

// ONNX's If on conditions that are known when a graph is read.

#include <doctest/doctest.h>

#include "graph/constants.h"
#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "ops/builtin_ops.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/passes_fixture.h"

#ifdef ARBALEST_ONNX
#include <onnx/defs/parser.h>
#include <onnx/onnx_pb.h>

#include <fstream>
#endif

using namespace arbalest;
using namespace arbalest::test;

namespace nested_graphs_test {
namespace {

// As PyTorch writes squeeze(1) of what may have another extent there.
constexpr const char* kSqueeze = R"(
  shape = Shape (x)
  one = Constant <value = int64[1] {1}> ()
  extent = Gather <axis = 0> (shape, one)
  is_one = Equal (extent, one)
  y = If (is_one) <
    then_branch = squeezed () => (float[N, M] s) { axes = Constant <value = int64[1] {1}> () s = Squeeze (x, axes) },
    else_branch = scaled () => (float[N, C, M] t) <float[3] w = {1, 2, 3}> { t = Mul (x, w) }
  >
  z = Relu (y)
)";

Graph read(const std::string& nodes, const std::string& inputs) {
  return read_graph_text(fmt::format("<ir_version: 8, opset_import: [\"\" : 17]> g ({}) => () {{ {} }}", inputs, nodes),
                         "f", builtin_ops());
}

Graph verified(const std::string& nodes, const std::string& inputs = "float[2, 3] x") {
  Graph graph = read(nodes, inputs);
  verify(graph);
  check_sound(graph);
  return graph;
}

}  // namespace

TEST_CASE("If: a constant condition takes one branch, and the other need not be supported") {
  const auto choice = [](int condition) {
    return fmt::format(
        "c = Constant <value = bool {{{}}}> () h = Relu (x)\n"
        "y = If (c) <then_branch = a () => (t) {{ u = Exp (h) t = Neg (u) }},\n"
        "            else_branch = b () => (e) {{ e = Nonsense (h) }}>",
        condition);
  };
  const Graph graph = verified(choice(1));
  CHECK(op_names(graph) == std::vector<std::string>{"Relu", "Exp", "Neg", "Identity"});
  CHECK(value(graph, "y/then_branch/u").type.shape == Shape{2, 3});
  CHECK(value(graph, "y").type.shape == Shape{2, 3});
  CHECK(error_of([&] { read(choice(0), "float[2, 3] x"); }).find("unknown operator or function 'Nonsense'") !=
        std::string::npos);
}

TEST_CASE("If: a condition on a shape is known with the shape, and what is not taken may not even fit") {
  Graph squeezed = verified(kSqueeze, "float[4, 1, 3] x");
  CHECK(value(squeezed, "z").type.shape == Shape{4, 3});
  CHECK(count_ops(squeezed, "Mul") == 0);
  CHECK(value(squeezed, "y/else_branch/w").role == Role::Constant);  // not a parameter that trains nothing
  Graph scaled = verified(kSqueeze, "float[4, 2, 3] x");             // Squeeze of an extent of 2 is an error
  CHECK(value(scaled, "z").type.shape == Shape{4, 2, 3});
  CHECK(count_ops(scaled, "Squeeze") == 0);
  CHECK(value(scaled, "y/else_branch/w").role == Role::Parameter);
  verify(scaled);  // as after an override
  settle_choices(scaled);
  CHECK(count_ops(scaled, "arbalest.Choose") == 0);
  CHECK(only(scaled, "Identity").inputs == std::vector<ValueId>{scaled.find_value("y/else_branch/t")});
}

TEST_CASE("If: branches nest, and read what is around them") {
  const Graph graph = verified(
      "yes = Constant <value = bool {1}> () no = Constant <value = bool {0}> ()\n"
      "a, b = If (yes) <then_branch = one () => (p, q) {\n"
      "  p = Exp (x)\n"
      "  q = If (no) <then_branch = two () => (p2) { p2 = Neg (p) }, else_branch = three () => (x) {}>\n"
      "}, else_branch = four () => (x, x) {}>\n"
      "y = Add (a, b)");
  CHECK(op_names(graph) == std::vector<std::string>{"Exp", "Identity", "Identity", "Identity", "Add"});
  CHECK(value(graph, "a/then_branch/p").producer == NodeId(0));
}

TEST_CASE("If: what cannot be decided, or is none, is refused") {
  const auto fault = [](const std::string& nodes) { return error_of([&] { verified(nodes); }); };
  const auto check = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const std::string branches = "<then_branch = a () => (t) { t = Exp (x) }, else_branch = b () => (e) { e = Neg (x) }>";
  check(fault("s = ReduceSum <keepdims = 0> (x) c = Cast <to = 9> (s) y = If (c) " + branches),
        "node 'y' (arbalest.Choose): the condition 'c' is computed when the graph runs; expected a constant");
  check(fault("y = If (x) " + branches), "input 'condition' is float[2,3]; expected one bool");
  check(fault("y = If () " + branches), "f:1:72: node 'y' (If): expected one input, the condition");
  check(fault("c = Constant <value = bool {1}> () y = If (c) <then_branch = a () => (x) {}>"),
        "attribute 'else_branch' is missing");
  check(fault("c = Constant <value = bool {1}> () y = If (c) <then_branch = 1, else_branch = 2>"),
        "attribute 'else_branch' is no graph");
  check(
      fault(
          "c = Constant <value = bool {1}> () y = If (c) <then_branch = a () => () {}, else_branch = b () => (x) {}>"),
      "'then_branch' is a graph of 0 inputs and 0 outputs; expected none and 1");
  check(fault("y = Relu <alpha = a () => (x) {}> (x)"), "attribute 'alpha' of 'Relu' is a graph, which only If takes");
  std::string deep = "x";
  for (int i = 0; i < 100; ++i) deep = fmt::format("a () => (y) {{ y = If (c) <then_branch = {}", deep);
  check(fault("y = If (c) <then_branch = " + deep), "branches are nested more than 64 deep");
}

TEST_CASE("If: a condition on the batch is not one that validation with another batch can have") {
  const std::string body =
      "shape = Shape <start = 0, end = 1> (x)\n"
      "four = Constant <value = int64[1] {4}> ()\n"
      "c = Equal (shape, four)\n"
      "h = If (c) <then_branch = a () => (t) { t = Relu (x) }, else_branch = b () => (e) { e = Exp (x) }>\n"
      "f = Flatten (h)\n"
      "logits = arbalest.Linear <units = 3> (f)\n" +
      std::string(kLoss);
  Graph graph = net(body);
  Attributes& validate = graph.find_op("arbalest.Validate")->attributes;
  validate.set("batch", int64_t{4});
  CHECK(count_ops(make_program(graph, {}).training().graph, "Exp") == 0);
  validate.set("batch", int64_t{8});
  const std::string text = error_of([&] { make_program(graph, {}); });
  INFO(text);
  CHECK(text.find("the condition 'c' is false for this batch, and was true for the one") != std::string::npos);
}

#ifdef ARBALEST_ONNX

TEST_CASE("If: binary models have the same branches") {
  onnx::ModelProto model;
  const std::string text = fmt::format(
      "<ir_version: 8, opset_import: [\"\" : 17]> g (float[4, 2, 3] x) => (float[N, C, M] z) {{ {} }}", kSqueeze);
  const auto status = onnx::OnnxParser::Parse(model, text.c_str());
  REQUIRE_MESSAGE(status.IsOK(), status.ErrorMessage());
  const FileTestFolder folder;
  const std::string path = folder.file("model.onnx");
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  Graph graph = read_onnx(path, builtin_ops());
  verify(graph);
  check_sound(graph);
  CHECK(value(graph, "z").type.shape == Shape{4, 2, 3});
  CHECK(op_names(graph) == op_names(verified(kSqueeze, "float[4, 2, 3] x")));
}

#endif

}  // namespace nested_graphs_test
