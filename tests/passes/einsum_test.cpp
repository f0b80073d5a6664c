// SPDX-License-Identifier: Apache-2.0

// Einsum becomes products of matrices, in training and with validation's batches. ONNX's own vectors judge the numbers.

#include <doctest/doctest.h>

#include "passes/program.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/net.h"

using namespace arbalest;
using namespace arbalest::test;

namespace einsum_test {
namespace {

// x is float[4,2,6,6]; w and v are weights.
std::string einsum(const std::string& equation, const std::string& inputs) {
  std::string initial;
  if (inputs.find('w') != inputs.npos) initial = "float[2, 5] w = {" + numbers(10) + "}";
  if (inputs.find('v') != inputs.npos)
    initial += (initial.empty() ? "" : ", ") + ("float[5, 6] v = {" + numbers(30) + "}");
  return fmt::format("h = Einsum <equation = \"{}\"> ({})\nlogits = arbalest.Linear <units = 3> (h)\n{}", equation,
                     inputs, kLoss) +
         (initial.empty() ? "" : "#initial " + initial);
}

}  // namespace

TEST_CASE("Einsum is products of matrices, whatever the batch") {
  struct Case {
    std::string equation, inputs;
    Shape shape;  // after the batch
  };
  for (const Case& c : {Case{"nchw,cd->ndhw", "x, w", {5, 6, 6}}, Case{"cd,nchw->nhdw", "w, x", {6, 5, 6}},
                        Case{"nchw,cd,dw->nh", "x, w, v", {6}}, Case{"nchw->nwc", "x", {6, 2}},
                        Case{"n...w,kw->n...k", "x, v", {2, 6, 5}}, Case{"nchw,ncvw->nhv", "x, x", {6, 6}},
                        Case{" nchw , kd -> n k c d ", "x, v", {5, 2, 6}}, Case{"abyz,bk", "x, w", {5, 6, 6}},
                        Case{"nchh->nhc", "x", {6, 2}}, Case{"nchh,cd->nd", "x, w", {5}}}) {
    INFO(c.equation);
    const Program program = make_program(net(einsum(c.equation, c.inputs)), {});
    for (const Loop& loop : program.loops) {
      Shape expected = c.shape;
      expected.insert(expected.begin(), loop.batch);
      const Graph& graph = loop.graph;
      CHECK(graph.find_op("Einsum") == nullptr);
      CHECK(graph.values[graph.find_value("h")].type.shape == expected);
    }
  }
}

TEST_CASE("a diagonal of two axes that are both the batch is taken in validation's batches, too") {
  for (const std::string equation : {"nn->n", "nxn->nx", "nnab->nab"}) {
    INFO(equation);
    const std::string input = equation == "nn->n" ? "square" : equation == "nxn->nx" ? "middle" : "last";
    const Program program = make_program(
        net(fmt::format("flat = Flatten (x)\nturned = Transpose (flat)\nsquare = MatMul (flat, turned)\n"
                        "middle = Unsqueeze <axes = [1]> (square)\nlast = Unsqueeze <axes = [2, 3]> (square)\n"
                        "own = Einsum <equation = \"{}\"> ({})\nh = Reshape <shape = [-1, 1]> (own)\n"
                        "logits = arbalest.Linear <units = 3> (h)\n{}",
                        equation, input, kLoss)),
        {});
    for (const Loop& loop : program.loops) {
      CHECK(loop.graph.find_op("Einsum") == nullptr);
      const ValueId logits = loop.graph.find_value("logits");
      REQUIRE(logits != kNone);
      CHECK(loop.graph.values[logits].type.shape == Shape{loop.batch, 3});
    }
  }
}

TEST_CASE("an Einsum that cannot be is refused") {
  const auto refusal = [](const std::string& equation, const std::string& inputs) {
    return error_of([&] { net(einsum(equation, inputs)); });
  };
  const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != text.npos; };
  CHECK(has(refusal("nchw,cd", "x"), "attribute 'equation', \"nchw,cd\", has 2 operands, and there are 1 inputs"));
  CHECK(has(refusal("nchw->nhh", "x"), "names 'h' twice in its result"));
  CHECK(has(refusal("ncch->nc", "x"), "has an axis of 2 and of 6 elements in one place"));
  CHECK(has(refusal("nch,cd->nd", "x, w"), "has 3 axes for input 0, which has 4"));
  CHECK(has(refusal("nchw,hd->nd", "x, w"), "has an axis of 6 and of 2 elements in one place"));
  CHECK(has(refusal("nchw->nz", "x"), "has 'z' in its result, and in no operand"));
  CHECK(has(refusal("nc1w->n", "x"), "has '1'; expected letters, commas, '->' and '...'"));
  CHECK(has(refusal("n...,...->n", "x, w"), "has different numbers of axes for '...'"));
}

}  // namespace einsum_test
