// SPDX-License-Identifier: Apache-2.0

// Attention with masks and guards, as exporters write them, computes the same when it is fused.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "passes/program.h"
#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace attention_masks_test {
namespace {

// Queries, keys and values of 2 heads of 8 for 9 tokens; masks (9, 9) of the tokens up to each, (4, 1, 1, 9) of what
// the data leaves, and of both; biases 0 and minus infinity of these masks.
const std::string kOperands =
    "tokens = Reshape <shape = [0, 9, 8]> (x)\n"
    "q3 = arbalest.Linear <units = 16, axis = -1> (tokens)\nq4 = Reshape <shape = [0, 0, 2, 8]> (q3)\n"
    "k3 = arbalest.Linear <units = 16, axis = -1> (tokens)\nk4 = Reshape <shape = [0, 0, 2, 8]> (k3)\n"
    "v3 = arbalest.Linear <units = 16, axis = -1> (tokens)\nv4 = Reshape <shape = [0, 0, 2, 8]> (v3)\n"
    "q = Transpose <perm = [0, 2, 1, 3]> (q4)\nk = Transpose <perm = [0, 2, 3, 1]> (k4)\n"
    "v = Transpose <perm = [0, 2, 1, 3]> (v4)\n"
    "zero = Constant <value_float = 0.0> ()\none = Constant <value_float = 1.0> ()\n"
    "half = Constant <value_float = 0.5> ()\nlimit = Constant <value_float = 1.2> ()\n"
    "infinity = Div (one, zero)\nnever = Neg (infinity)\nleast = Constant <value_float = -3.4e38> ()\n"
    "first = Constant <value_int = 0> ()\nend = Constant <value_int = 9> ()\nstep = Constant <value_int = 1> ()\n"
    "column = Range (first, end, step)\nrow = Reshape <shape = [9, 1]> (column)\n"
    "causal = LessOrEqual (column, row)\nhidden = Not (causal)\ncausal4 = Expand <shape = [4, 1, 9, 9]> (causal)\n"
    "of_token = Slice <starts = [0], ends = [1], axes = [2]> (tokens)\nlarge = Greater (of_token, limit)\n"
    "left = Reshape <shape = [-1, 1, 1, 9]> (large)\nboth = And (causal, left)\n"
    "causal_bias = Where (causal4, zero, never)\nleft_bias = Where (left, zero, never)\n"
    "both_bias = Where (both, zero, never)\n"
    "s = MatMul (q, k)\n";
const std::string kPlain = "p = Softmax (m)\na = MatMul (p, v)\n";
const std::string kGuarded = "p = Softmax (m)\nn = IsNaN (p)\ng = Where (n, zero, p)\na = MatMul (g, v)\n";
// The same as guarded weights, without the NaN that the gradient of Softmax makes of itself in rows without a key.
const std::string kSafe =
    "top = ReduceMax <axes = [-1]> (m)\nlost = Equal (top, never)\nf = Where (lost, zero, m)\np = Softmax (f)\n"
    "g = Where (lost, zero, p)\na = MatMul (g, v)\n";
const std::string kEnd =
    "logits = arbalest.Linear <units = 3> (h)\nloss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "trained = arbalest.Train <lr = 0.1, momentum = 0.9> (loss)\nreport = arbalest.Validate <batch = 4> (trained, "
    "loss)\n";

// The parameters that the text reads.
std::string initial(const std::string& text) {
  if (text.find("of_heads") != text.npos) return "#initial float[2, 9, 9] of_heads = {" + numbers(162) + "}";
  return text.find("of_keys") == text.npos ? "" : "#initial float[9] of_keys = {" + numbers(9) + "}";
}

Program program(const std::string& body, bool fused) {
  ProgramOptions options;
  options.fused_kernels = true;
  if (!fused) options.without.insert("fuse_attention");
  Program made = make_program(net(body), options);
  check_sound(made.training().graph);
  return made;
}

// `between`: nodes that make weights of the scores m, and a of them. Fused, there is no Softmax, and the same losses,
// gradients and outputs come out as of `reference` in their place, not fused.
void compare(const std::string& before, const std::string& between, const std::string& after,
             const std::string& reference) {
  const std::string body = before + between + after;
  INFO(body);
  const auto cpu = make_cpu_device();
  const Program plain = program(body, false), fused = program(body, true);
  const int64_t attentions = count_ops(plain.training().graph, "Softmax");
  CHECK(attentions > 0);
  for (const char* op : {"Softmax", "arbalest.SoftmaxGrad", "IsNaN"}) CHECK(count_ops(fused.training().graph, op) == 0);
  CHECK(count_ops(fused.training().graph, "arbalest.Attention") == attentions);
  const Numbers numbers = numbers_of(fused, {}, *cpu, DataType::Float64);
  const char* loss = "the loss of step 0";
  CHECK(numbers.at(loss)[0] == doctest::Approx(numbers_of(plain, {}, *cpu, DataType::Float64).at(loss)[0]));
  const Numbers expected = numbers_of(program(before + reference + after, false), {}, *cpu, DataType::Float64);
  CHECK(std::isfinite(expected.at("the loss of step 1")[0]));
  CHECK(difference(expected, numbers, 1e-9) == "");
}

}  // namespace

TEST_CASE("masks and guards of attention compute the same when it is fused") {
  const std::string heads_first = "h = Flatten (a)\n",
                    rows_first = "t = Transpose <perm = [0, 2, 1, 3]> (a)\nh = Flatten (t)\n",
                    as_it_is =
                        "extents = Shape (q)\nu = Reshape (a, extents)\nasked = Shape (a)\n"
                        "t = Transpose <perm = [0, 2, 1, 3]> (u)\nw = Reshape (t, asked)\nh = Flatten (w)\n";
  for (const std::string& end : {heads_first, rows_first, as_it_is}) {
    for (const char* scores : {
             "m = Mul (s, one)\n",
             "m = Add (s, causal_bias)\n",
             "m = Add (left_bias, s)\n",
             "m = Add (s, both_bias)\n",
             "m = Where (causal, s, never)\n",
             "m = Where (hidden, least, s)\n",
             "m = Where (both, s, never)\n",
             "b = Add (s, of_heads)\nm = Add (b, both_bias)\n",
             "b = Where (left, s, never)\nm = Where (causal, b, never)\n",
             "b = Add (of_heads, both_bias)\nm = Add (s, b)\n",
         }) {
      compare(kOperands + scores, kGuarded, end + kEnd + initial(scores), kSafe);
    }
  }
}

TEST_CASE("masks of attention without a guard compute the same when it is fused") {
  for (const char* scores : {
           "m = Add (s, causal_bias)\n",
           "m = Where (causal, s, least)\n",
           "some = Or (left, causal)\nlost = Not (some)\nmany = Cast <to = 1> (lost)\nb = Mul (many, least)\nm = Add "
           "(s, b)\n",
           "m = Add (s, of_keys)\n",
       }) {
    compare(kOperands + scores, kPlain, "h = Flatten (a)\n" + kEnd + initial(scores), kPlain);
  }
}

TEST_CASE("the data of these tests mask rows as a whole") {
  const auto cpu = make_cpu_device();
  const Program plain = program(kOperands + "m = Add (s, both_bias)\n" + kPlain + "h = Flatten (a)\n" + kEnd, false);
  CHECK(std::isnan(numbers_of(plain, {}, *cpu, DataType::Float64).at("the loss of step 0")[0]));
}

TEST_CASE("a guard falls away where each row has a key, and layers share their masks") {
  const std::string second =
      "u = Add (a, q)\nk2 = Transpose <perm = [0, 1, 3, 2]> (u)\ns2 = MatMul (u, k2)\nbias2 = Where ({}, zero, never)\n"
      "m2 = Add (s2, bias2)\np2 = Softmax (m2)\nn2 = IsNaN (p2)\ng2 = Where (n2, zero, p2)\na2 = MatMul (g2, v)\n"
      "h = Flatten (a2)\n";
  for (const auto& [mask, guards] : {std::pair{"causal4", 0}, {"both", 2}}) {
    const std::string body = kOperands + fmt::format("bias = Where ({}, zero, never)\n", mask) + "m = Add (s, bias)\n" +
                             kGuarded + fmt::format(fmt::runtime(second), mask) + kEnd;
    const Program fused = program(body, true);
    const Graph& graph = fused.training().graph;
    std::vector<ValueId> biases;
    for (const Node& node : graph.nodes) {
      if (!node.is(op::Attention)) continue;
      biases.push_back(node.inputs.at(3));
      CHECK(int_attribute(node, "causal") == (guards == 0));
    }
    REQUIRE(biases.size() == 2);
    CHECK(biases[0] == biases[1]);
    CHECK(graph.values[biases[0]].type.shape == (guards ? Shape{4, 1, 9, 9} : Shape{1, 1, 9, 9}));
    CHECK(count_ops(graph, "arbalest.WhereGrad") == guards);
    CHECK(count_ops(graph, "ReduceMax") == (guards ? 1 : 0));
  }
}

TEST_CASE("attention without hidden keys has no bias") {
  const Program fused = program(kOperands +
                                    "all = Or (causal4, hidden)\nbias = Where (all, zero, never)\n"
                                    "m = Add (s, bias)\n" +
                                    kGuarded + "h = Flatten (a)\n" + kEnd,
                                true);
  CHECK(only(fused.training().graph, "arbalest.Attention").inputs.size() == 3);
}

TEST_CASE("scores of rows that numbers may hide as a whole, and other choices, stay as they are") {
  for (const char* scores : {
           "m = Where (left, s, least)\n",   // rows without a key have equal weights, and no gradient
           "m = Where (causal, s, half)\n",  // hides nothing
       }) {
    const std::string body = kOperands + scores + kPlain + "h = Flatten (a)\n" + kEnd;
    INFO(body);
    CHECK(count_ops(program(body, true).training().graph, "arbalest.Attention") == 0);
  }
  for (const char* guard : {"g = Where (n, one, p)\n", "g = Where (n, p, zero)\n", "g = Where (n, zero, s)\n"}) {
    const std::string body = kOperands + "m = Mul (s, one)\np = Softmax (m)\nn = IsNaN (p)\n" + guard +
                             "a = MatMul (g, v)\nh = Flatten (a)\n" + kEnd;
    INFO(body);
    CHECK(count_ops(program(body, true).training().graph, "arbalest.Attention") == 0);
  }
}

}  // namespace attention_masks_test
