// SPDX-License-Identifier: Apache-2.0

// Regions that read and write where slices and concatenations would copy: which are made, and that programs with them
// compute the same.

#include <doctest/doctest.h>

#include "ops/regions/region.h"
#include "tests/passes/in_double.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace region_moves_test {
namespace {

Program made(const std::string& body, bool moves) {
  ProgramOptions options{.generated_kernels = true};
  if (!moves) options.without = {"fuse_region_moves"};
  Program program = make_program(net(body), options);
  for (const Loop& loop : program.loops) check_sound(loop.graph);
  return program;
}

// The losses and weights of two steps, with the pass and without.
void check_same(const std::string& body) {
  INFO(body);
  check_same(train(made(body, false), 2), train(made(body, true), 2));
}

// A layer's result `u`, what is made of it, and a head on `m`, which has that many elements a sample.
std::string body_of(const std::string& middle, int width, int made) {
  return "flat = Flatten (x)\nu = MatMul (flat, w)\n" + middle + "logits = MatMul (m, v)\n" + std::string(kLoss) +
         fmt::format("#initial float[72, {}] w = {{{}}}, float[{}, 3] v = {{{}}}", width, numbers(72 * width), made,
                     numbers(3 * made));
}

int64_t count(const Program& program, const char* op) {
  return count_ops(program.training().graph, op);
}

const Node& region_with(const Program& program, const char* attribute) {
  const Table<NodeId, Node>& nodes = program.training().graph.nodes;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) {
    return node.op->name == "Region" && node.attributes.find(attribute) != nullptr;
  });
  REQUIRE(found != nodes.end());
  return *found;
}

}  // namespace

TEST_CASE("region moves: gates read their halves in one tensor, and write their gradients into one") {
  const std::string body =
      body_of("a, b = Split <axis = 1, num_outputs = 2> (u)\ns = Sigmoid (a)\nt = Tanh (b)\nm = Mul (s, t)\n", 8, 4);
  const Program plain = made(body, false), fused = made(body, true);
  CHECK(count(plain, "Split") == 1);
  CHECK(count(plain, "Concat") == 1);
  CHECK(count(fused, "Split") == 0);
  CHECK(count(fused, "Concat") == 0);
  const RegionProgram reads = region_program(region_with(fused, "views"), builtin_ops());
  REQUIRE(reads.views.size() == 2);
  CHECK(reads.views[1].first == 4);
  CHECK(reads.views[1].strides == Shape{8, 1});
  const RegionProgram writes = region_program(region_with(fused, "concats"), builtin_ops());
  REQUIRE(writes.concats.size() == 1);
  CHECK(writes.concats[0].parts == 2);
  check_same(body);
}

TEST_CASE("region moves: slices through transpositions and shapes, and operators that were alone") {
  const std::string chain = body_of(
      "r = Reshape <shape = [0, 4, 2]> (u)\nt = Transpose <perm = [0, 2, 1]> (r)\n"
      "a, b = Split <axis = 1, num_outputs = 2> (t)\nc = Squeeze <axes = [1]> (a)\n"
      "d = Squeeze <axes = [1]> (b)\ne = Exp (c)\nm = Mul (e, d)\n",
      8, 4);
  const Program through = made(chain, true);
  CHECK(count(through, "Split") == 0);
  CHECK(count(through, "Transpose") < count(made(chain, false), "Transpose"));
  check_same(chain);
  // Two slices, which are one box by then.
  const std::string box = body_of(
      "r = Reshape <shape = [0, 4, 4]> (u)\np = Slice <starts = [1], ends = [4], axes = [1]> (r)\n"
      "q = Slice <starts = [0], ends = [3], axes = [2]> (p)\ns = Sigmoid (q)\nf = Mul (s, q)\nm = Flatten (f)\n",
      16, 9);
  CHECK(count(made(box, true), "Slice") == 0);
  CHECK(count(made(box, true), "arbalest.Assemble") == count(made(box, false), "arbalest.Assemble") - 1);
  check_same(box);
  const std::string alone = body_of("a, b = Split <axis = 1, num_outputs = 2> (u)\nm = Mul (a, b)\n", 8, 4);
  CHECK(count(made(alone, true), "Split") == 0);
  CHECK(count(made(alone, true), "arbalest.Region") > 0);
  check_same(alone);
  // Rotated positions: halves that change places.
  check_same(
      body_of("a, b = Split <axis = 1, num_outputs = 2> (u)\nn = Neg (b)\nq = Concat <axis = 1> (n, a)\n"
              "p = Mul (u, u)\no = Add (p, q)\nm = Sigmoid (o)\n",
              8, 8));
}

TEST_CASE("region moves: results go into several concatenations, and stay where others read them") {
  const std::string body = body_of(
      "a, b = Split <axis = 1, num_outputs = 2> (u)\ns = Sigmoid (a)\nt = Mul (s, b)\n"
      "p = Concat <axis = 1> (s, t)\nq = Concat <axis = 1> (t, s)\nc = Softmax (s)\nd = Softmax (p)\n"
      "e = Softmax (q)\nf = Concat <axis = 1> (c, d)\nm = Concat <axis = 1> (f, e)\n",
      8, 20);
  CHECK(count(made(body, false), "Concat") == 4);  // one of them joins the gradients of the halves
  CHECK(count(made(body, true), "Concat") == 1);   // m and f become one, of softmaxes
  check_same(body);
}

TEST_CASE("region moves: what others read as well is still copied, and a small part keeps no large tensor") {
  const std::string read = body_of(
      "a, b = Split <axis = 1, num_outputs = 2> (u)\ns = Sigmoid (a)\nt = Mul (s, b)\nc = Softmax (a)\n"
      "m = Add (t, c)\n",
      8, 4);
  CHECK(count(made(read, true), "Split") == 1);
  check_same(read);
  const std::string part =
      body_of("a = Slice <starts = [0], ends = [2], axes = [1]> (u)\ns = Sigmoid (a)\nm = Mul (s, a)\n", 16, 2);
  CHECK(count(made(part, true), "Slice") == 1);
  const std::string half =
      body_of("a = Slice <starts = [0], ends = [8], axes = [1]> (u)\ns = Sigmoid (a)\nm = Mul (s, a)\n", 16, 8);
  CHECK(count(made(half, true), "Slice") == 0);
  check_same(part);
  check_same(half);
}

}  // namespace region_moves_test
