// SPDX-License-Identifier: Apache-2.0

// Attention over the pixels of an image: they become one axis, and an image again, without a copy.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "ops/norm/group_norm.h"
#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace pixels_test {
namespace {

// x is (4, 2, 6, 6), and c has 16 channels.
const std::string kImage = "c = arbalest.Conv <filters = 16, kernel_shape = [3, 3]> (x)\n";
const std::string kThree =
    "q = arbalest.Conv <filters = 16, kernel_shape = [1, 1]> (c)\nk = arbalest.Conv <filters = 16, kernel_shape = [1, "
    "1]> (c)\nv = arbalest.Conv <filters = 16, kernel_shape = [1, 1]> (c)\n";
const std::string kBack =
    "o = arbalest.Conv <filters = 16, kernel_shape = [1, 1]> (i)\nr = Add (o, c)\nh = GlobalAveragePool (r)\n" + kHead;
// With a head, as DDPM has it: values and weights have rows as columns.
const std::string kOneHead = kImage + kThree +
                             "q3 = Reshape <shape = [0, 16, -1]> (q)\nqt = Transpose <perm = [0, 2, 1]> (q3)\n"
                             "k3 = Reshape <shape = [0, 16, -1]> (k)\ns = MatMul (qt, k3)\n"
                             "number = Constant <value_float = 0.25> ()\nd = Mul (s, number)\nw = Softmax (d)\n"
                             "v3 = Reshape <shape = [0, 16, -1]> (v)\nwt = Transpose <perm = [0, 2, 1]> (w)\n"
                             "a = MatMul (v3, wt)\ni = Reshape <shape = [0, 16, 6, 6]> (a)\n" +
                             kBack;
// As the non-local block has it.
const std::string kNonLocal = kImage + kThree +
                              "q3 = Reshape <shape = [0, 16, -1]> (q)\nqt = Transpose <perm = [0, 2, 1]> (q3)\n"
                              "k3 = Reshape <shape = [0, 16, -1]> (k)\ns = MatMul (qt, k3)\nw = Softmax (s)\n"
                              "v3 = Reshape <shape = [0, 16, -1]> (v)\nvt = Transpose <perm = [0, 2, 1]> (v3)\n"
                              "a = MatMul (w, vt)\nat = Transpose <perm = [0, 2, 1]> (a)\n"
                              "i = Reshape <shape = [0, 16, 6, 6]> (at)\n" +
                              kBack;
// Two heads of 8 channels.
const std::string kTwoHeads =
    kImage + kThree +
    "q4 = Reshape <shape = [0, 2, 8, -1]> (q)\nqt = Transpose <perm = [0, 1, 3, 2]> (q4)\n"
    "k4 = Reshape <shape = [0, 2, 8, -1]> (k)\ns = MatMul (qt, k4)\nw = Softmax (s)\n"
    "v4 = Reshape <shape = [0, 2, 8, -1]> (v)\nwt = Transpose <perm = [0, 1, 3, 2]> (w)\na = MatMul (v4, wt)\n"
    "i = Reshape <shape = [0, 16, 6, 6]> (a)\n" +
    kBack;
// A norm of groups, and convolutions, of pixels that are one axis, with a residual there.
const std::string kNormed =
    kImage +
    "p = Reshape <shape = [0, 16, -1]> (c)\nn = GroupNormalization <num_groups = 4> (p, scale, shift)\n"
    "qkv = Conv (n, inner)\nt = Reshape <shape = [-1, 24, 36]> (qkv)\n"
    "q, k, v = Split <axis = 1, num_outputs = 3> (t)\nqt = Transpose <perm = [0, 2, 1]> (q)\ns = MatMul (qt, k)\n"
    "w = Softmax (s)\nvt = Transpose <perm = [0, 2, 1]> (v)\nat = MatMul (w, vt)\n"
    "a = Transpose <perm = [0, 2, 1]> (at)\nm = Reshape <shape = [-1, 16, 36]> (a)\nu = Conv (m, outer)\n"
    "sum = Add (p, u)\ni = Reshape <shape = [0, 16, 6, 6]> (sum)\n"
    "o = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (i)\nh = GlobalAveragePool (o)\n" +
    kHead + "#initial float[16] scale = {" + numbers(16) + "}, float[16] shift = {" + numbers(16) +
    "}, float[48, 16, 1] inner = {" + numbers(768) + "}, float[16, 16, 1] outer = {" + numbers(256) + "}";

Program made(const std::string& body, std::set<std::string> without = {}) {
  ProgramOptions options{.fused_kernels = true, .generated_kernels = true, .without = std::move(without)};
  Program program = make_program(net(body), options);
  for (const Loop& loop : program.loops) check_sound(loop.graph);
  return program;
}

int64_t count(const Program& program, std::string_view op) {
  return count_ops(program.training().graph, op);
}

Numbers run(const Program& program) {
  return numbers_of(program, {}, *make_cpu_device(), DataType::Float64);
}

}  // namespace

TEST_CASE("attention over pixels is found without an axis of heads, and with keys or values that are columns") {
  for (const std::string& body : {kOneHead, kNonLocal, kTwoHeads, kNormed}) {
    INFO(body);
    const Program fused = made(body);
    CHECK(count(fused, "arbalest.Attention") == 1);
    CHECK(count(fused, "Softmax") == 0);
    const Program plain =
        made(body, {"fuse_attention", "merge_pixels_late", "simplify_moves", "fuse_transposes", "fuse_rearrangements"});
    CHECK(count(plain, "Softmax") == 1);
    CHECK(difference(run(plain), run(fused), 1e-9) == "");
    CHECK(difference(run(plain), run(made(body, {"fuse_attention"})), 1e-9) == "");
    CHECK(difference(run(plain), run(made(body, {"merge_pixels_late"})), 1e-9) == "");
  }
  // Biases are for heads.
  const std::string biased = "b = Add (d, bias)\nw = Softmax (b)\n";
  std::string body = kOneHead;
  body.replace(body.find("w = Softmax (d)\n"), 16, biased);
  CHECK(count(made(body + "#initial float[36, 36] bias = {" + numbers(1296) + "}"), "arbalest.Attention") == 0);
  // Few scores, of channels, whose rows would be turned and padded.
  const std::string channels = kImage + kThree +
                               "q4 = Reshape <shape = [0, 2, 8, -1]> (q)\nk4 = Reshape <shape = [0, 2, 36, 8]> (k)\n"
                               "s = MatMul (q4, k4)\nw = Softmax (s)\nv4 = Reshape <shape = [0, 2, 8, -1]> (v)\n"
                               "a = MatMul (w, v4)\ni = Reshape <shape = [0, 16, 6, 6]> (a)\n" +
                               kBack;
  CHECK(count(made(channels), "arbalest.Attention") == 0);
}

TEST_CASE("pixels that are one axis of attention's operands, and of products', are not copied") {
  for (const std::string& body : {kOneHead, kNonLocal}) {
    for (const bool fused : {false, true}) {
      INFO(body);
      const Program program = fused ? made(body) : made(body, {"fuse_attention"});
      CHECK(count(program, "arbalest.ChangeLayout") == 0);
      CHECK(count(program, "Transpose") == 0);
    }
    CHECK(count(made(body, {"fuse_attention", "fuse_transposes"}), "arbalest.ChangeLayout") > 0);
  }
}

TEST_CASE("operators that treat all pixels alike come before these are one axis, and others stay") {
  const Program program = made(kNormed, {"fuse_attention"}), stays = made(kNormed, {"merge_pixels_late"});
  CHECK(count(program, kGroupMoments) == 1);  // of an image
  CHECK(count(stays, kGroupMoments) == 0);
  for (const Node& node : program.training().graph.nodes) {
    if (node.is("Conv")) CHECK(program.training().graph.values[node.outputs[0]].type.shape.size() == 4);
  }
  const auto merged_first = [](const std::string& lines, const std::string& more = "") {
    const std::string body = kImage + "p = Reshape <shape = [0, 16, -1]> (c)\n" + lines +
                             "h = ReduceMean <axes = [2], keepdims = 0> (y)\n" + kHead + more;
    Graph graph = expanded(body);
    const std::vector<std::string> before = op_names(graph);
    merge_pixels_late(graph);
    check_sound(graph);
    return op_names(graph) == before;
  };
  CHECK(!merged_first("y = Sigmoid (p)\n"));
  CHECK(!merged_first("y = Mul (p, w)\n", "#initial float[16, 1] w = {" + numbers(16) + "}"));
  CHECK(!merged_first("a = Sigmoid (p)\ny = Add (a, p)\n"));
  CHECK(merged_first("y = Mul (p, w)\n", "#initial float[36] w = {" + numbers(36) + "}"));
  CHECK(merged_first("y = Softmax (p)\n"));
  CHECK(merged_first("y = Conv <pads = [1, 1]> (p, w)\n", "#initial float[2, 16, 3] w = {" + numbers(96) + "}"));
  CHECK(merged_first("t = Transpose <perm = [0, 2, 1]> (p)\ny = Sigmoid (t)\n"));
}

}  // namespace pixels_test
