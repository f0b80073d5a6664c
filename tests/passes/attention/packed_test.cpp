// SPDX-License-Identifier: Apache-2.0

// Attention reads queries, keys and values that lie next to each other in one tensor directly, and only if nothing else
// reads parts of that tensor.

#include <doctest/doctest.h>

#include "passes/fuse/strided_view.h"
#include "passes/program.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace packed_attention_test {
namespace {

// 9 tokens of 8, and rows of 2 heads of 8 of Q, K and V: (4, 9, 48).
const std::string kRows =
    "tokens = Reshape <shape = [0, 9, 8]> (x)\nqkv = arbalest.Linear <units = 48, axis = -1> (tokens)\n";
const std::string kFive = "five = Reshape <shape = [0, 9, 3, 2, 8]> (qkv)\n";
const std::string kMoved = kFive + "moved = Transpose <perm = [2, 0, 3, 1, 4]> (five)\n";  // as timm has it
const std::string kSqueezed =
    "q = Squeeze <axes = [0]> (q5)\nkeys = Squeeze <axes = [0]> (k5)\nv = Squeeze <axes = [0]> (v5)\n";
const std::string kIndices =
    "none = Constant <value_int = 0> ()\none = Constant <value_int = 1> ()\nlast = Constant <value_int = -1> ()\n";
const std::string kTaken =
    kIndices + "q = Gather (moved, none)\nkeys = Gather (moved, one)\nv = Gather (moved, last)\n";
const std::string kTurned = "k = Transpose <perm = [0, 1, 3, 2]> (keys)\n";
const std::string kAttended = "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\n";
const std::string kEnd = "h = Flatten (a)\nlogits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);
// Heads of the parts of rows.
const std::string kOfRows =
    "q4 = Reshape <shape = [0, 0, 2, 8]> (q3)\nq = Transpose <perm = [0, 2, 1, 3]> (q4)\n"
    "k4 = Reshape <shape = [0, 0, 2, 8]> (k3)\nk = Transpose <perm = [0, 2, 3, 1]> (k4)\n"
    "v4 = Reshape <shape = [0, 0, 2, 8]> (v3)\nv = Transpose <perm = [0, 2, 1, 3]> (v4)\n";

Graph fused(const std::string& text) {
  Graph graph = expanded(text + kEnd);
  fuse_attention(graph, true);
  check_sound(graph);
  return graph;
}

}  // namespace

TEST_CASE("attention reads the rows of Q, K and V in place, in the forms that people and exporters write") {
  for (const std::string& text : {
           "q3, k3, v3 = Split <axis = -1> (qkv)\n" + kOfRows + kAttended,
           kMoved + "q5, k5, v5 = Split <axis = 0> (moved)\n" + kSqueezed + kTurned + kAttended,
           kMoved + kTaken + kTurned + kAttended,
           // A factor that an exporter computes from the depth, which Shape reads off the queries.
           kMoved + kTaken + kTurned +
               "shape = Shape <start = 3> (q)\ndepth = Cast <to = 1> (shape)\nroot = Sqrt (depth)\n"
               "s = MatMul (q, k)\nd = Div (s, root)\nw = Softmax (d)\na = MatMul (w, v)\n",
           kFive +
               "q5, k5, v5 = Split <axis = 2> (five)\nq4 = Squeeze <axes = [2]> (q5)\n"
               "k4 = Squeeze <axes = [2]> (k5)\nv4 = Reshape <shape = [0, 9, 2, 8]> (v5)\n"
               "q = Transpose <perm = [0, 2, 1, 3]> (q4)\nk = Transpose <perm = [0, 2, 3, 1]> (k4)\n"
               "v = Transpose <perm = [0, 2, 1, 3]> (v4)\n" +
               kAttended,
           // Other uses of the whole rows do not count as readers of their parts.
           "q3, k3, v3 = Split <axis = 2> (qkv)\n" + kOfRows +
               "r = Relu (qkv)\nr3, other = Split <axis = 2, split = [16, 32]> (r)\n"
               "r4 = Reshape <shape = [0, 0, 2, 8]> (r3)\nr5 = Transpose <perm = [0, 2, 1, 3]> (r4)\n"
               "s = MatMul (q, k)\nw = Softmax (s)\nb = MatMul (w, v)\na = Add (b, r5)\n",
       }) {
    INFO(text);
    const Graph graph = fused(kRows + text);
    CHECK(count_ops(graph, "Softmax") == 0);
    CHECK(count_ops(graph, "arbalest.Attention") == 0);
    const Node& attention = only(graph, "arbalest.PackedAttention");
    CHECK(attention.inputs == std::vector<ValueId>{graph.find_value("qkv")});
    CHECK(int_attribute(attention, "heads") == 2);
    CHECK(int_attribute(attention, "head_axis") == 1);
  }
}

TEST_CASE("attention reads parts apart that others read, or that lie otherwise than in rows of Q, K and V") {
  const std::string split = "q3, k3, v3 = Split <axis = 2> (qkv)\n";
  const std::string sum = "s = MatMul (q, k)\nw = Softmax (s)\nb = MatMul (w, v)\na = Add (b, read)\n";
  for (const std::string& text : {
           split + kOfRows + "read = Relu (q)\n" + sum,
           split + kOfRows +
               "r3 = Relu (k3)\nr4 = Reshape <shape = [0, 0, 2, 8]> (r3)\n"
               "read = Transpose <perm = [0, 2, 1, 3]> (r4)\n" +
               sum,
           kMoved + kTaken + kTurned + "read = Gather (moved, one)\n" + sum,
           "k3, q3, v3 = Split <axis = 2> (qkv)\n" + kOfRows + kAttended,
           "q3, k3, one = Split <axis = 2> (qkv)\nv3 = Identity (k3)\n" + kOfRows + kAttended,
           "r = Relu (qkv)\nq3, k3, one = Split <axis = 2> (qkv)\none_more, two, v3 = Split <axis = 2> (r)\n" +
               kOfRows + kAttended,
           split +
               "g = Relu (q3)\nq4 = Reshape <shape = [0, 0, 2, 8]> (g)\nq = Transpose <perm = [0, 2, 1, 3]> (q4)\n" +
               kOfRows.substr(kOfRows.find("k4")) + kAttended,
           // A head's Q, K and V next to each other.
           "five = Reshape <shape = [0, 9, 2, 3, 8]> (qkv)\nmoved = Transpose <perm = [3, 0, 2, 1, 4]> (five)\n" +
               kTaken + kTurned + kAttended,
           // Parts of columns.
           "five = Reshape <shape = [0, 3, 9, 2, 8]> (qkv)\nmoved = Transpose <perm = [1, 0, 3, 2, 4]> (five)\n" +
               kTaken + kTurned + kAttended,
       }) {
    INFO(text);
    const Graph graph = fused(kRows + text);
    CHECK(count_ops(graph, "Softmax") == 0);
    CHECK(count_ops(graph, "arbalest.PackedAttention") == 0);
    CHECK(count_ops(graph, "arbalest.Attention") == 1);
  }
}

TEST_CASE("parts that the graph gives back are read apart") {
  for (const char* kept : {"q3", "k4", "v"}) {
    Graph graph = expanded(kRows + "q3, k3, v3 = Split <axis = 2> (qkv)\n" + kOfRows + kAttended + kEnd);
    graph.outputs.push_back(graph.find_value(kept));
    fuse_attention(graph, true);
    CHECK(count_ops(graph, "arbalest.PackedAttention") == 0);
    CHECK(count_ops(graph, "arbalest.Attention") == 1);
  }
}

TEST_CASE("strides say where a value lies that nodes took out of another, or there are none") {
  struct Expected {
    std::string text;
    std::optional<StridedView> view;  // of "v" in the tokens, (4, 9, 8)
  };
  const auto view = [](int64_t first, Shape strides) { return StridedView{kNone, first, std::move(strides)}; };
  for (const Expected& expected : std::vector<Expected>{
           {"v = Identity (tokens)\n", view(0, {72, 8, 1})},
           {"v = Transpose (tokens)\n", view(0, {1, 8, 72})},
           {"v = Flatten (tokens)\n", view(0, {72, 1})},
           {"v = Reshape <shape = [2, 2, 3, 3, 1, 8]> (tokens)\n", view(0, {144, 72, 24, 8, 0, 1})},
           {"a, b, v = Split <axis = 1> (tokens)\n", view(48, {72, 8, 1})},
           {"a, , v = Split <axis = 1> (tokens)\n", std::nullopt},
           {"a, v = Split <axis = -1, split = [6, 2]> (tokens)\n", view(6, {72, 8, 1})},
           {"a, b = Split <axis = 2> (tokens)\nv = Reshape <shape = [36, 4]> (b)\n", view(4, {8, 1})},
           {"a, b = Split <axis = 2> (tokens)\nv = Flatten (b)\n", std::nullopt},
           {"t = Transpose <perm = [0, 2, 1]> (tokens)\nv = Reshape <shape = [4, 72]> (t)\n", std::nullopt},
           {"t = Transpose <perm = [0, 2, 1]> (tokens)\nv = Reshape <shape = [4, 2, 4, 9]> (t)\n",
            view(0, {72, 4, 1, 8})},
           {"i = Constant <value_int = -2> ()\nv = Gather <axis = 1> (tokens, i)\n", view(56, {72, 1})},
           {"i = Constant <value_ints = [3]> ()\nv = Gather <axis = 1> (tokens, i)\n", view(24, {72, 0, 1})},
           {"i = Constant <value_ints = [3, 4]> ()\nv = Gather <axis = 1> (tokens, i)\n", std::nullopt},
           {"flat = Flatten (tokens)\nv = Relu (flat)\n", std::nullopt}}) {
    INFO(expected.text);
    const Graph graph = expanded("tokens = Reshape <shape = [0, 9, 8]> (x)\n" + expected.text +
                                 "h = Flatten (x)\nlogits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss));
    const auto found = view_in(graph, graph.find_value("v"), {4, 9, 8});
    REQUIRE(found.has_value() == expected.view.has_value());
    if (!found) continue;
    CHECK(found->first == expected.view->first);
    CHECK(found->strides == expected.view->strides);
  }
}

TEST_CASE("ViT's program has no copy of Q, K or V, and none of their gradients") {
  ProgramOptions options;
  options.bf16 = true;
  options.fused_kernels = true;
  const Program program = make_program(example("vit_s16"), options);
  const Graph &training = program.training().graph, &validation = program.find(LoopRole::Validate)->graph;
  check_sound(training);
  for (const Graph* graph : {&training, &validation}) {
    CHECK(count_ops(*graph, "arbalest.PackedAttention") == 12);
    CHECK(count_ops(*graph, "arbalest.Attention") == 0);
    CHECK(count_ops(*graph, "Split") == 0);
    CHECK(count_ops(*graph, "Concat") == 0);
  }
  CHECK(count_ops(training, "arbalest.PackedAttentionGrad") == 12);
  CHECK(count_ops(training, "arbalest.AttentionGrad") == 0);
  const Node& gradient = *std::find_if(training.nodes.begin(), training.nodes.end(), [](const Node& node) {
    return node.op->qualified_name() == "arbalest.PackedAttentionGrad";
  });
  // 16 · 16 patches and the class token.
  CHECK(to_string(training.values[gradient.outputs[0]].type) == "bfloat16[64,257,1152]");
}

}  // namespace packed_attention_test
