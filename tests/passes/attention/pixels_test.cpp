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

Program made(const std::string& body, std::set<std::string> without = {}, int64_t batch = 4) {
  ProgramOptions options{.fused_kernels = true, .generated_kernels = true, .without = std::move(without)};
  Graph graph = net(body);
  for (Node& node : graph.nodes) {
    if (node.is(op::Prefetch)) node.attributes.set("batch", batch);
  }
  verify(graph);
  Program program = make_program(std::move(graph), options);
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
  // The rank of y where p is the pixels of c as one axis: an image has four axes.
  const auto rank_of = [](const std::string& lines, const std::string& more = "") {
    Graph graph = expanded(kImage + "p = Reshape <shape = [0, 16, -1]> (c)\n" + lines +
                           "h = ReduceMean <axes = [2], keepdims = 0> (y)\n" + kHead + more);
    merge_pixels_late(graph);
    check_sound(graph);
    return value(graph, "y").type.shape.size();
  };
  CHECK(rank_of("y = Sigmoid (p)\n") == 4);
  CHECK(rank_of("y = Mul (p, w)\n", "#initial float[16, 1] w = {" + numbers(16) + "}") == 4);
  CHECK(rank_of("a = Sigmoid (p)\ny = Add (a, p)\n") == 4);
  CHECK(rank_of("y = Mul (p, w)\n", "#initial float[36] w = {" + numbers(36) + "}") == 3);
  CHECK(rank_of("y = Softmax (p)\n") == 3);
  CHECK(rank_of("y = Conv <pads = [1, 1]> (p, w)\n", "#initial float[2, 16, 3] w = {" + numbers(96) + "}") == 3);
  CHECK(rank_of("t = Transpose <perm = [0, 2, 1]> (p)\ny = Sigmoid (t)\n") == 3);
}

TEST_CASE("what all pixels meet may be a sample's, whatever the batch") {
  // Gates of a channel, and of all of them, of each sample.
  for (const char* axes : {"[2]", "[1, 2]"}) {
    for (const int64_t batch : {1, 4}) {
      const std::string body = kImage + "p = Reshape <shape = [0, 16, -1]> (c)\nm = ReduceMean <axes = " + axes +
                               "> (p)\ng = Sigmoid (m)\ns = Mul (p, g)\ni = Reshape <shape = [0, 16, 6, 6]> (s)\n" +
                               kBack;
      CHECK(difference(run(made(body, {"merge_pixels_late"}, batch)), run(made(body, {}, batch)), 1e-9) == "");
    }
  }
}

TEST_CASE("keys that all samples share are none of a sample, even if there is one") {
  const std::string body = kImage +
                           "q3 = Reshape <shape = [0, 16, -1]> (c)\nqt = Transpose <perm = [0, 2, 1]> (q3)\n"
                           "s = MatMul (qt, keys)\nw = Softmax (s)\nwt = Transpose <perm = [0, 2, 1]> (w)\n"
                           "a = MatMul (q3, wt)\ni = Reshape <shape = [0, 16, 6, 6]> (a)\n" +
                           kBack + "#initial float[1, 16, 36] keys = {" + numbers(576) + "}";
  CHECK(count(made(body, {}, 1), "arbalest.Attention") == 0);
  CHECK(count(made(kOneHead, {}, 1), "arbalest.Attention") == 1);
}

TEST_CASE("nodes after those that come before a merge have their types again") {
  const std::string body = kImage + kThree +
                           "q3 = Reshape <shape = [0, 16, -1]> (q)\nqt = Transpose <perm = [0, 2, 1]> (q3)\n"
                           "k3 = Reshape <shape = [0, 16, -1]> (k)\ns = MatMul (qt, k3)\nw = Softmax (s)\n"
                           "v3 = Reshape <shape = [0, 16, -1]> (v)\nwt = Transpose <perm = [0, 2, 1]> (w)\n"
                           "m = MatMul (v3, wt)\nu = Conv (m, inner)\na = Add (u, q3)\n"
                           "i = Reshape <shape = [0, 16, 6, 6]> (a)\n" +
                           kBack + "#initial float[16, 16, 1] inner = {" + numbers(256) + "}";
  CHECK(difference(run(made(body, {"merge_pixels_late"})), run(made(body)), 1e-9) == "");
  // Keys that become columns twice, without an axis of heads.
  const std::string twice = kImage + kThree +
                            "q3 = Reshape <shape = [-1, 8, 36]> (q)\nqt = Transpose <perm = [0, 2, 1]> (q3)\n"
                            "k3 = Reshape <shape = [-1, 8, 36]> (k)\nkt = Transpose <perm = [0, 2, 1]> (k3)\n"
                            "kr = Reshape <shape = [-1, 36, 8]> (kt)\nkc = Transpose <perm = [0, 2, 1]> (kr)\n"
                            "kf = Reshape <shape = [-1, 8, 36]> (kc)\ns = MatMul (qt, kf)\nw = Softmax (s)\n"
                            "v3 = Reshape <shape = [-1, 8, 36]> (v)\nwt = Transpose <perm = [0, 2, 1]> (w)\n"
                            "a = MatMul (v3, wt)\ni = Reshape <shape = [-1, 16, 6, 6]> (a)\n" +
                            kBack;
  CHECK(difference(run(made(twice, {"fuse_attention"})), run(made(twice)), 1e-9) == "");
}

}  // namespace pixels_test
