// SPDX-License-Identifier: Apache-2.0

// ONNX's Attention is found by the pass that fuses attention, and computes the same with it and without. The vectors of
// tests/ops/vectors judge the numbers.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "passes/program.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace onnx_attention_test {
namespace {

// 9 tokens; flags (4, 1, 1, 9) of which some rows have none, and such of four tokens.
const std::string kTokens =
    "tokens = Reshape <shape = [0, 9, 8]> (x)\nlimit = Constant <value_float = 1.2> ()\n"
    "of_token = Slice <starts = [0], ends = [1], axes = [2]> (tokens)\nlarge = Greater (of_token, limit)\n"
    "left = Reshape <shape = [-1, 1, 1, 9]> (large)\nsome = Slice <starts = [0], ends = [4], axes = [3]> (left)\n";
// Queries, keys and values of 2 heads of 8 side by side, and by heads; keys and values of one head.
const std::string kSides =
    "q3 = arbalest.Linear <units = 16, axis = -1> (tokens)\nk3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n"
    "v3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n";
const std::string kHeads = kSides +
                           "q5 = Reshape <shape = [0, 0, 2, 8]> (q3)\nq = Transpose <perm = [0, 2, 1, 3]> (q5)\n"
                           "k5 = Reshape <shape = [0, 0, 2, 8]> (k3)\nk = Transpose <perm = [0, 2, 1, 3]> (k5)\n"
                           "v5 = Reshape <shape = [0, 0, 2, 8]> (v3)\nv = Transpose <perm = [0, 2, 1, 3]> (v5)\n";
const std::string kShared =
    "q3 = arbalest.Linear <units = 16, axis = -1> (tokens)\nk1 = arbalest.Linear <units = 8, axis = -1> (tokens)\n"
    "v1 = arbalest.Linear <units = 8, axis = -1> (tokens)\n";
const std::string kEnd = "h = Flatten (a)\nlogits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);

// `line` is the Attention, whose operands say what else there is. The parameter `bias` is (2, 9, 9).
std::string body_of(const std::string& line) {
  const auto reads = [&](const char* name) { return line.find(name) != line.npos; };
  const std::string operands = reads("(q, ") ? kHeads : reads("k1") ? kShared : reads("q3") ? kSides : "";
  return kTokens + operands + line + "\n" + kEnd +
         (reads("bias") ? "#initial float[2, 9, 9] bias = {" + numbers(162) + "}" : "");
}

Program program_of(const std::string& line, bool fused) {
  ProgramOptions options;
  options.fused_kernels = true;
  if (!fused) options.without.insert("fuse_attention");
  Program made = make_program(net(body_of(line)), options);
  for (const Loop& loop : made.loops) check_sound(loop.graph);
  return made;
}

}  // namespace

TEST_CASE("ONNX's Attention is fused, and computes the same, whatever the batch") {
  const auto cpu = make_cpu_device();
  struct Form {
    std::string line;
    bool causal = false;
  };
  for (const Form& form :
       {Form{"a = Attention (q, k, v)"}, Form{"a = Attention <scale = 0.5, is_causal = 1> (q, k, v)", true},
        Form{"a = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (q3, k3, v3)", true},
        Form{"a = Attention <q_num_heads = 2, kv_num_heads = 1> (q3, k1, v1)"}, Form{"a = Attention (q, k, v, left)"},
        Form{"a = Attention <is_causal = 1> (q, k, v, left)"}, Form{"a = Attention (q, k, v, some)"},
        Form{"a = Attention (q, k, v, bias)"}, Form{"a = Attention <is_causal = 1> (q, k, v, bias)"}}) {
    INFO(form.line);
    const Program plain = program_of(form.line, false), fused = program_of(form.line, true);
    const Graph& graph = fused.training().graph;
    CHECK(count_ops(plain.training().graph, "Softmax") == 1);
    CHECK(count_ops(graph, "Softmax") == 0);
    CHECK(count_ops(graph, "Attention") == 0);
    CHECK(int_attribute(only(graph, "arbalest.Attention"), "causal") == int64_t(form.causal));
    const Numbers expected = numbers_of(plain, {}, *cpu, DataType::Float64);
    CHECK(std::isfinite(expected.at("the loss of step 1")[0]));
    CHECK(difference(expected, numbers_of(fused, {}, *cpu, DataType::Float64), 1e-9) == "");
  }
}

TEST_CASE("queries, keys and values of one product are packed for ONNX's Attention") {
  const std::string line =
      "all = arbalest.Linear <units = 48, axis = -1> (tokens)\nqa, ka, va = Split <axis = 2> (all)\n"
      "a = Attention <q_num_heads = 2, kv_num_heads = 2> (qa, ka, va)";
  CHECK(count_ops(program_of(line, true).training().graph, "arbalest.PackedAttention") == 1);
}

TEST_CASE("scores with a bound stay apart") {
  const Program program = program_of("a = Attention <softcap = 2.0> (q, k, v)", true);
  CHECK(count_ops(program.training().graph, "Softmax") == 1);
  CHECK(count_ops(program.training().graph, "Attention") == 0);
}

TEST_CASE("an Attention that cannot be, or that keeps a cache, is refused") {
  const auto refusal = [](const std::string& line) { return error_of([&] { net(body_of(line)); }); };
  const auto has = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != text.npos);
  };
  has(refusal("a = Attention (q, k, v, , k, v)"), "input 'past_key' is not supported");
  has(refusal("a, key = Attention (q, k, v)\nagain = Relu (key)"), "output 'present_key' is not supported");
  CHECK_NOTHROW(program_of("a, key, value, scores = Attention (q, k, v)", true));
  has(refusal("a = Attention (q3, k3, v3)"), "attribute 'q_num_heads' is 0; expected a divisor of 16");
  has(refusal("a = Attention <q_num_heads = 2, kv_num_heads = 2> (q3, k1, v1)"),
      "expected as many samples, and heads of one size");
  has(refusal("a = Attention (q, k, v, large)"), "expected bool or float that spreads to (4, 2, 9, 9)");
  has(refusal("a = Attention <softcap = -1.0> (q, k, v)"), "attribute 'softcap' is -1");
}

}  // namespace onnx_attention_test
