// SPDX-License-Identifier: Apache-2.0

// Operators that move elements: those that need not be there, and those that become one. Numbers stay what they are.

#include <doctest/doctest.h>

#include <tuple>

#include "tests/passes/in_double.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace moves_test {
namespace {

// 9 tokens of 8: (4, 9, 8).
const std::string kTokens = "tokens = Reshape <shape = [0, 9, 8]> (x)\n";
// Tokens of 12: (4, 9, 12).
const std::string kWide = kTokens + "wide = arbalest.Linear <units = 12, axis = -1> (tokens)\n";
const std::string kFlat = "h = Flatten (y)\n" + kHead;

Program program_of(const std::string& body, std::set<std::string> without = {}) {
  ProgramOptions options;
  options.fused_kernels = true;
  options.without = std::move(without);
  Program program = make_program(net(body), options);
  for (const Loop& loop : program.loops) check_sound(loop.graph);
  return program;
}

std::string constant(const std::string& name, const std::string& content) {
  return fmt::format("{} = Constant <{}> ()\n", name, content);
}

// The training graph, whose numbers are those of a program without the passes.
Graph same_as_without(const std::string& body) {
  INFO(body);
  const Program program = program_of(body);
  check_same(train(program_of(body, {"simplify_moves", "fuse_transposes", "fuse_rearrangements", "fuse_moves"}), 3),
             train(program, 3));
  return program.training().graph;
}

int64_t count_all(const Graph& graph, std::initializer_list<const char*> ops) {
  int64_t count = 0;
  for (const char* op : ops) count += count_ops(graph, op);
  return count;
}

int64_t gathers(const Graph& graph) {
  return count_all(graph, {"Gather", "arbalest.GatherGrad"});
}

}  // namespace

TEST_CASE("Gather of constant indices that are equally far from each other is a Slice") {
  for (const auto& [index, axis] : std::vector<std::pair<std::string, int>>{{"value_int = 1", 1},
                                                                            {"value_int = -2", -1},
                                                                            {"value_ints = [3]", 1},
                                                                            {"value_ints = [-9]", 1},
                                                                            {"value_ints = [3, 4, 5]", 1},
                                                                            {"value_ints = [0, 2, 4, 6]", 2},
                                                                            {"value_ints = [-1, -4, -7]", -2},
                                                                            {"value_ints = [1, 0]", 1}}) {
    const Graph graph =
        same_as_without(kWide + constant("i", index) + fmt::format("y = Gather <axis = {}> (wide, i)\n", axis) + kFlat);
    CHECK(gathers(graph) == 0);
    CHECK(count_ops(graph, "Slice") == 1);
    CHECK(count_ops(graph, "arbalest.SliceGrad") == 1);
  }
}

TEST_CASE("Gather of other indices stays") {
  for (const std::string index : {"[0, 0]", "[0, 1, 3]", "[1, 2, 1]"}) {
    const Graph graph =
        same_as_without(kWide + constant("i", "value_ints = " + index) + "y = Gather <axis = 1> (wide, i)\n" + kFlat);
    CHECK(gathers(graph) == 2);
  }
  const Graph graph = same_as_without(kWide +
                                      "mean = ReduceMean <axes = [0], keepdims = 0> (tokens)\n"
                                      "most = ArgMax <axis = 1, keepdims = 0> (mean)\n"
                                      "y = Gather <axis = 2> (wide, most)\n" +
                                      kFlat);
  CHECK(gathers(graph) == 2);
}

// Indices i of the box of `wide`, of all samples, as exporters write them for wide[:, row:row+rows, column:].
std::string box(int row, int rows, int column, int columns) {
  std::string text = "batch = Shape <start = 0, end = 1> (wide)\ncount = Squeeze <axes = [0]> (batch)\n" +
                     constant("zero", "value_int = 0") + constant("one", "value_int = 1") +
                     "r = Range (zero, count, one)\nr3 = Reshape <shape = [-1, 1, 1]> (r)\n" +
                     constant("rest", fmt::format("value_ints = [{}, {}]", rows, columns)) +
                     "extents = Concat <axis = 0> (batch, rest)\n";
  for (const auto& [name, first, end, shape] :
       {std::tuple("s", row, row + rows, "[-1, 1]"), std::tuple("t", column, column + columns, "[-1]")}) {
    text += constant(fmt::format("{}first", name), fmt::format("value_int = {}", first)) +
            constant(fmt::format("{}end", name), fmt::format("value_int = {}", end)) +
            fmt::format("{0} = Range ({0}first, {0}end, one)\n{0}3 = Reshape <shape = {1}> ({0})\n", name, shape);
  }
  for (const char* name : {"r", "s", "t"}) {
    text += fmt::format("{0}e = Expand ({0}3, extents)\n{0}u = Unsqueeze <axes = [-1]> ({0}e)\n", name);
  }
  return text + "i = Concat <axis = -1> (ru, su, tu)\n";
}

TEST_CASE("GatherND and ScatterND of a box, as exporters write slices, move elements without indices") {
  const auto counted = [](const Graph& graph) {
    return count_all(graph, {"GatherND", "arbalest.GatherNDGrad", "ScatterND", "arbalest.ScatterNDGrad"});
  };
  const std::string replaced = "half = Mul (part, part)\ny = ScatterND (wide, i, half)\n";
  const auto part = [](int row, int rows, int column, int columns) {
    return box(row, rows, column, columns) +
           fmt::format("part = Slice <starts = [{}, {}], ends = [{}, {}], axes = [1, 2]> (wide)\n", row, column,
                       row + rows, column + columns);
  };
  for (const auto& [row, rows, column, columns] :
       {std::tuple(0, 9, 0, 12), std::tuple(1, 8, 2, 10), std::tuple(0, 9, 3, 4), std::tuple(2, 3, 0, 12),
        std::tuple(2, 5, 1, 10)}) {
    INFO(fmt::format("{} {} {} {}", row, rows, column, columns));
    const Graph scattered = same_as_without(kWide + part(row, rows, column, columns) + replaced + kFlat);
    CHECK(counted(scattered) == 0);
    const Graph gathered =
        same_as_without(kWide + box(row, rows, column, columns) + "y = GatherND (wide, i)\n" + kFlat);
    CHECK(counted(gathered) == 0);
  }
  // More indices than are computed when the graph is read: 18 MB.
  const std::string large = kTokens +
                            "many = Tile <repeats = [1, 90, 1]> (tokens)\n"
                            "wide = arbalest.Linear <units = 240, axis = -1> (many)\n" +
                            part(1, 809, 3, 237) + replaced +
                            "m = ReduceMean <axes = [1], keepdims = 0> (y)\nh = Flatten (m)\n" + kHead;
  CHECK(counted(program_of(large).training().graph) == 0);
  const auto at = [](const char* numbers) {
    return constant("j", fmt::format("value_ints = {}", numbers)) + "i = Reshape <shape = [-1, 1]> (j)\n";
  };
  // As many, of other places: the indices of both axes are those of the last one.
  const std::string square =
      kTokens +
      "many = Tile <repeats = [1, 160, 1]> (tokens)\nwide = arbalest.Linear <units = 1440, axis = -1> (many)\n"
      "turned = Transpose <perm = [1, 2, 0]> (wide)\n" +
      constant("zero", "value_int = 0") + constant("one", "value_int = 1") + constant("end", "value_int = 1440") +
      constant("all", "value_ints = [1440, 1440, 1]") + "r = Range (zero, end, one)\n";
  const std::string picked =
      "first = Expand (a, all)\nsecond = Expand (b, all)\ni = Concat <axis = -1> (first, second)\n"
      "z = GatherND (turned, i)\nm = ReduceMean <axes = [0], keepdims = 0> (z)\nh = Transpose <perm = [1, 0]> (m)\n" +
      kHead;
  const std::string column = "Reshape <shape = [-1, 1]> (r)\n", row = "Reshape <shape = [1, -1, 1]> (r)\n";
  CHECK(counted(program_of(square + "a = Reshape <shape = [-1, 1, 1]> (r)\nb = " + row + picked).training().graph) ==
        0);
  CHECK(counted(program_of(square + "a = " + column + "b = " + row + picked).training().graph) > 0);
  // A parameter of which nothing is left.
  const std::string lost =
      "flat = Flatten (x)\nu = Slice <starts = [0], ends = [4], axes = [0]> (flat)\n" + at("[0, 1, 2, 3]") +
      "p = ScatterND (w, i, u)\ns = ReduceMean <axes = [0], keepdims = 0> (p)\nh = Add (flat, s)\n" + kHead +
      "#initial float[4, 72] w = {" + numbers(288) + "}";
  CHECK(counted(same_as_without(lost)) > 0);
  // Other places than a box, and a box in which updates are added.
  const std::string rows = kWide + "turned = Transpose <perm = [1, 0, 2]> (wide)\n";
  const std::string two = "part = Slice <starts = [0], ends = [2], axes = [0]> (turned)\n";
  const std::string end = "y = Transpose <perm = [1, 0, 2]> (z)\n" + kFlat;
  const std::string put = two + "z = ScatterND (turned, i, part)\n" + end;
  for (const char* apart : {"[0, 2]", "[4, 3]", "[3, 3]"}) {
    CHECK(counted(program_of(rows + at(apart) + put).training().graph) > 0);
  }
  for (const char* together : {"[3, 4]", "[-2, -1]", "[-9, -8]"}) {
    CHECK(counted(same_as_without(rows + at(together) + put)) == 0);
  }
  const std::string added = two + "z = ScatterND <reduction = \"add\"> (turned, i, part)\n" + end;
  CHECK(counted(program_of(rows + at("[3, 4]") + added).training().graph) > 0);
}

TEST_CASE("parts that are taken out of one tensor give it their gradients in one copy") {
  const std::string heads =
      "four = Reshape <shape = [0, 9, 3, 4]> (wide)\nmoved = Transpose <perm = [2, 0, 1, 3]> (four)\n";
  const std::string product = "p = Mul (a, b)\ny = Add (p, c)\n";
  for (const std::string& taken :
       {heads + constant("i", "value_int = 0") + constant("j", "value_int = 1") + constant("k", "value_int = -1") +
            "a = Gather (moved, i)\nb = Gather (moved, j)\nc = Gather (moved, k)\n",
        heads + "d, e, f = Split <axis = 0> (moved)\na = Squeeze <axes = [0]> (d)\nb = Squeeze <axes = [0]> (e)\n"
                "c = Squeeze <axes = [0]> (f)\n",
        std::string("a = Slice <starts = [0], ends = [4], axes = [2]> (wide)\n"
                    "b = Slice <starts = [4], ends = [8], axes = [-1]> (wide)\n"
                    "c = Slice <starts = [-4], ends = [100], axes = [2]> (wide)\n"),
        std::string("a = Slice <starts = [0], ends = [12], axes = [2], steps = [3]> (wide)\n"
                    "b = Slice <starts = [1], ends = [12], axes = [2], steps = [3]> (wide)\n"
                    "c = Slice <starts = [11], ends = [-100], axes = [2], steps = [-3]> (wide)\n")}) {
    const Graph graph = same_as_without(kWide + taken + product + kFlat);
    CHECK(gathers(graph) == 0);
    CHECK(count_ops(graph, "arbalest.SliceGrad") == 0);
    CHECK(count_all(graph, {"arbalest.Assemble", "Concat"}) == 1);
    // The sum, and the head's bias.
    CHECK(count_ops(graph, "Add") == 1);
  }
}

TEST_CASE("parts with gaps between them leave zeros there; parts that overlap are added up") {
  const std::string end = "y = Mul (a, b)\n" + kFlat;
  const Graph apart = same_as_without(kWide +
                                      "a = Slice <starts = [0], ends = [4], axes = [2]> (wide)\n"
                                      "b = Slice <starts = [6], ends = [10], axes = [2]> (wide)\n" +
                                      end);
  CHECK(only(apart, "arbalest.Assemble").inputs.size() == 2);
  CHECK(count_ops(apart, "arbalest.SliceGrad") == 0);
  const Graph left_out = same_as_without(kWide + "a, , b = Split <axis = 2> (wide)\n" + end);
  CHECK(only(left_out, "arbalest.Assemble").inputs.size() == 2);
  const Graph overlapping = same_as_without(kWide +
                                            "a = Slice <starts = [0], ends = [4], axes = [2]> (wide)\n"
                                            "b = Slice <starts = [3], ends = [7], axes = [2]> (wide)\n" +
                                            end);
  CHECK(count_ops(overlapping, "arbalest.SliceGrad") == 2);
  CHECK(count_ops(overlapping, "arbalest.Assemble") == 0);
}

TEST_CASE("a roll of windows is one copy, and so is its gradient") {
  const auto roll = [](const char* to, const char* from, int axis) {
    return fmt::format(
        "{0}1 = Slice <starts = [2], ends = [100], axes = [{2}]> ({1})\n"
        "{0}2 = Slice <starts = [0], ends = [2], axes = [{2}]> ({1})\n{0} = Concat <axis = {2}> ({0}1, {0}2)\n",
        to, from, axis);
  };
  const Graph graph = same_as_without(kWide + roll("r", "wide", 1) + roll("y", "r", 2) + kFlat);
  CHECK(count_all(graph, {"Slice", "Concat", "arbalest.SliceGrad"}) == 0);
  CHECK(count_ops(graph, "arbalest.Assemble") == 2);
  for (const Node& node : graph.nodes) {
    if (node.op->name == "Assemble") CHECK(node.inputs.size() == 4);
  }
}

TEST_CASE("patches of neighbours are put together in one copy, and so is their gradient") {
  const auto every_second = [](const char* to, const char* from, int first, int axis) {
    return fmt::format("{} = Slice <starts = [{}], ends = [100], axes = [{}], steps = [2]> ({})\n", to, first, axis,
                       from);
  };
  const Graph graph = same_as_without(
      kTokens + "t = arbalest.Linear <units = 16, axis = -1> (tokens)\nu = Reshape <shape = [0, 6, 6, 4]> (t)\n" +
      every_second("a", "u", 0, 1) + every_second("b", "u", 1, 1) + every_second("aa", "a", 0, 2) +
      every_second("ab", "a", 1, 2) + every_second("ba", "b", 0, 2) + every_second("bb", "b", 1, 2) +
      "y = Concat <axis = -1> (aa, ba, ab, bb)\n" + kFlat);
  CHECK(count_all(graph, {"Slice", "Concat", "arbalest.SliceGrad"}) == 0);
  CHECK(count_ops(graph, "arbalest.Assemble") == 2);
}

TEST_CASE("what others read stays in memory") {
  const Graph graph = same_as_without(kWide +
                                      "a = Slice <starts = [0], ends = [6], axes = [1]> (wide)\n"
                                      "b = Slice <starts = [0], ends = [6], axes = [2]> (a)\nr = Relu (a)\n"
                                      "c = Concat <axis = 2> (b, r)\ny = Concat <axis = 2> (c, b)\n" +
                                      kFlat);
  CHECK(count_ops(graph, "Relu") == 1);
  CHECK(count_all(graph, {"Slice", "arbalest.Assemble"}) >= 2);
}

TEST_CASE("moves of nothing are left out") {
  const Graph graph = same_as_without(
      kWide +
      "p = Pad <pads = [0, 0, 0, 0, 0, 0]> (wide)\ns = Slice <starts = [0], ends = [100], axes = [1]> (p)\n"
      "c = Concat <axis = 1> (s)\nt = Transpose <perm = [0, 1, 2]> (c)\n"
      "u = Unsqueeze <axes = [1]> (t)\nv = Transpose <perm = [1, 0, 2, 3]> (u)\n"
      "w = Expand <shape = [1, 1, 9, 12]> (v)\ny = Squeeze <axes = [0]> (w)\n" +
      kFlat);
  CHECK(count_all(graph, {"Pad", "Slice", "Concat", "Transpose", "Expand", "arbalest.SliceGrad"}) == 0);
  // These move something.
  const Graph moved = same_as_without(kWide +
                                      "p = Pad <pads = [0, 1, 0, 0, -1, 0]> (wide)\n"
                                      "s = Slice <starts = [8], ends = [-100], axes = [1], steps = [-1]> (p)\n"
                                      "y = Transpose <perm = [0, 2, 1]> (s)\n" +
                                      kFlat);
  CHECK(count_ops(moved, "Pad") == 2);
  CHECK(count_ops(moved, "Slice") == 1);
  CHECK(count_ops(moved, "Transpose") == 2);
}

TEST_CASE("a convolution puts the zeros around its images by itself") {
  const auto pads_left = [](const std::string& pad, const std::string& conv, const std::string& more = "") {
    const std::string body = "p = Pad <" + pad + "> (x)\nc = arbalest.Conv <filters = 4, " + conv +
                             "> (p)\nh = Relu (c)\n" + (more.empty() ? "g = Identity (h)\n" : more) +
                             "flat = Flatten (g)\nlogits = arbalest.Linear <units = 3> (flat)\n" + kLoss;
    return count_ops(same_as_without(body), "Pad");
  };
  const std::string stem = "kernel_shape = [3, 3], strides = [2, 2], ";
  CHECK(pads_left("pads = [0, 0, 0, 0, 0, 0, 1, 1]", stem + "auto_pad = \"VALID\"") == 0);
  CHECK(pads_left("pads = [0, 0, 1, 0, 0, 0, 1, 1]", stem + "pads = [0, 1, 1, 0]") == 0);
  CHECK(pads_left("pads = [2, 4], axes = [-1]", "kernel_shape = [1, 3], dilations = [1, 2], pads = [0, 0, 0, 0]") == 0);
  const auto plain = [](const std::string& body, const std::string& initial = "") {
    const std::string tail = "flat = Flatten (g)\nlogits = arbalest.Linear <units = 3> (flat)\n" + std::string(kLoss);
    return count_ops(same_as_without(body + tail + initial), "Pad");
  };
  CHECK(plain("p = Pad <pads = [0, 0, 0, 0, 0, 0, 1, 1]> (x)\n"
              "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 0, 0]> (p)\n"
              "g = Tanh (c)\n") == 0);
  CHECK(plain("r = Reshape <shape = [0, 2, -1]> (x)\nd = Conv <pads = [1, 1]> (r, v)\np = Pad <pads = [0, 0, 2, 0, 0, "
              "1]> (d)\n"
              "c = Conv <pads = [0, 0]> (p, w)\ng = Tanh (c)\n",
              "#initial float[4, 2, 3] w = {" + numbers(24) + "}, float[2, 2, 3] v = {" + numbers(12) + "}") == 0);
  // A window would have no pixel, what is around is no zero or no pixel, some are taken away, or others read them.
  CHECK(pads_left("pads = [0, 0, 3, 0, 0, 0, 0, 0]", stem + "pads = [0, 0, 0, 0]") == 1);
  CHECK(pads_left("pads = [0, 0, 1, 1, 0, 0, 1, 1], constant_value = 0.5", stem + "pads = [0, 0, 0, 0]") == 1);
  CHECK(pads_left("pads = [0, 0, 1, 1, 0, 0, 1, 1], mode = \"reflect\"", stem + "pads = [0, 0, 0, 0]") == 1);
  CHECK(pads_left("pads = [0, 1, 0, 0, 0, 0, 0, 0]", stem + "pads = [0, 0, 0, 0]") == 1);
  CHECK(pads_left("pads = [0, 0, -1, 0, 0, 0, 0, 0]", stem + "pads = [1, 1, 1, 1]") == 1);
  CHECK(pads_left("pads = [0, 0, 1, 1, 0, 0, 1, 1]", stem + "pads = [0, 0, 0, 0]",
                  "m = ReduceMean <keepdims = 1> (p)\ng = Add (h, m)\n") == 1);
}

TEST_CASE("operators by element broadcast what Expand would repeat") {
  const std::string norm = kWide + "n = ReduceL2 <axes = [-1]> (wide)\n";
  const Graph unit = same_as_without(norm + "e = Expand <shape = [1, 9, 12]> (n)\ny = Div (wide, e)\n" + kFlat);
  CHECK(count_all(unit, {"Expand"}) == 0);
  // Nothing else that Tanh reads has that shape.
  const Graph both =
      same_as_without(norm + "e = Expand <shape = [1, 9, 12]> (n)\na = Tanh (e)\ny = Add (a, wide)\n" + kFlat);
  CHECK(count_ops(both, "Expand") == 1);
  // Each is as long as the result along the axis that the other is repeated along.
  const Graph crossed = same_as_without(norm + "m = ReduceMean <axes = [1]> (wide)\n" +
                                        "e = Expand <shape = [1, 9, 12]> (n)\nf = Expand <shape = [1, 9, 12]> (m)\n" +
                                        "y = Mul (e, f)\n" + kFlat);
  CHECK(count_ops(crossed, "Expand") == 0);
  // Without it the result would have an axis less, or lie in another order.
  const Graph rank = same_as_without(
      "v = ReduceMean <axes = [0, 2, 3], keepdims = 0> (x)\n"
      "e = Expand <shape = [1, 2]> (v)\nt = Tanh (e)\nf = Flatten (x)\n"
      "g = ReduceMean <axes = [1]> (f)\ny = Mul (g, t)\n" +
      kFlat);
  CHECK(count_ops(rank, "Expand") == 1);
  const Graph layout = same_as_without(
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\np = ReduceMean <axes = [2, 3]> (c)\n"
      "r = Reshape <shape = [-1, 4, 1, 1]> (p)\ne = Expand <shape = [1, 4, 6, 6]> (r)\ny = Mul (e, c)\n" +
      kFlat);
  CHECK(count_ops(layout, "arbalest.SumTo") > 0);
}

TEST_CASE("pixels of channels-last images are rows without a copy") {
  const std::string patches = "c = arbalest.Conv <filters = 8, kernel_shape = [2, 2], strides = [2, 2]> (x)\n";
  const Graph graph = same_as_without(patches +
                                      "f = Reshape <shape = [0, 8, -1]> (c)\n"
                                      "t = Transpose <perm = [0, 2, 1]> (f)\n"
                                      "y = arbalest.Linear <units = 5, axis = -1> (t)\n" +
                                      kFlat);
  CHECK(count_all(graph, {"Transpose", "arbalest.ChangeLayout"}) == 0);
  const Graph other = same_as_without(patches +
                                      "f = Reshape <shape = [0, 4, -1]> (c)\n"
                                      "t = Transpose <perm = [0, 2, 1]> (f)\n"
                                      "y = arbalest.Linear <units = 5, axis = -1> (t)\n" +
                                      kFlat);
  CHECK(count_ops(other, "Transpose") == 2);
}

TEST_CASE("chains of transpositions, reshapes and changes of layout are one transposition") {
  // Patches of 2 × 2 pixels as rows, and back to an image.
  const std::string rows =
      "c = arbalest.Conv <filters = 8, kernel_shape = [1, 1]> (x)\n"
      "r = Reshape <shape = [-1, 2, 3, 2]> (c)\nt = Transpose <perm = [0, 2, 1, 3]> (r)\n"
      "s = Reshape <shape = [-1, 8, 9, 4]> (t)\nu = Transpose <perm = [0, 3, 2, 1]> (s)\n"
      "l = arbalest.Linear <units = 8, axis = -1> (u)\n";
  const Graph there = same_as_without(rows + "y = Relu (l)\n" + kFlat);
  CHECK(count_ops(there, "Transpose") == 2);
  CHECK(count_all(there, {"arbalest.ChangeLayout"}) == 0);
  const std::string back =
      "a = Transpose <perm = [0, 3, 2, 1]> (l)\nb = Reshape <shape = [-1, 3, 2, 2]> (a)\n"
      "d = Transpose <perm = [0, 2, 1, 3]> (b)\ne = Reshape <shape = [-1, 8, 6, 6]> (d)\n"
      "y = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (e)\n";
  const Graph both = same_as_without(rows + back + "h = GlobalAveragePool (y)\n" + kHead);
  CHECK(count_ops(both, "Transpose") == 4);
  CHECK(count_all(both, {"arbalest.ChangeLayout"}) == 0);
  // Something else reads what is between.
  const Graph read =
      same_as_without(rows + "g = Reshape <shape = [-1, 288]> (t)\n" +
                      "v = ReduceMean <axes = [1]> (l)\nf = Flatten (v)\ny = Concat <axis = 1> (f, g)\n" + kFlat);
  CHECK(count_ops(read, "Transpose") > 2);
}

TEST_CASE("transpositions around operators of lines stay where no name says how lines lie") {
  const std::string line = "#initial float[6, 8, 3] w = {" + numbers(144) + "}";
  for (const std::string& body :
       {kTokens + "t = Transpose <perm = [0, 2, 1]> (tokens)\nc = Conv <pads = [1, 1]> (t, w)\ny = Relu (c)\n",
        kTokens + "t = Transpose <perm = [0, 2, 1]> (tokens)\nc = Conv <pads = [1, 1]> (t, w)\n"
                  "r = Reshape <shape = [0, 6, 3, 3]> (c)\ny = Transpose <perm = [0, 2, 3, 1]> (r)\n"}) {
    same_as_without(body + kFlat + line);
  }
}

TEST_CASE("samples that are normalised as rows keep their shape only where nothing else changes") {
  const std::string scales = "#initial float[1] one = {1.5}, float[1] zero = {0.5}";
  const auto net_of = [&](const std::string& there, const std::string& back) {
    return "r = Reshape <shape = " + there +
           "> (x)\nn = InstanceNormalization (r, one, zero)\ny = Reshape <shape = " + back + "> (n)\n" + kFlat + scales;
  };
  for (const auto& [there, back, reshapes] :
       {std::tuple{"[0, 1, -1]", "[0, 2, 6, 6]", false}, {"[0, 1, -1]", "[0, 72]", true}}) {
    const Program program = program_of(net_of(there, back)), apart = program_of(net_of(there, back), {"fuse_samples"});
    check_same(train(apart, 3), train(program, 3));
    const Node& norm = only(program.training().graph, "arbalest.NormalizeSamples");
    const size_t rank = program.training().graph.values[norm.inputs[0]].type.shape.size();
    CHECK(rank == (reshapes ? 3 : 4));
  }
  // Rows that are images between, in a sample of one axis.
  const std::string flat =
      "f = Flatten (x)\nr = Reshape <shape = [0, 1, 8, 9]> (f)\n"
      "n = InstanceNormalization (r, one, zero)\ny = Reshape <shape = [0, 72]> (n)\n" +
      kFlat + scales;
  check_same(train(program_of(flat, {"fuse_samples"}), 3), train(program_of(flat), 3));
}

TEST_CASE("weights that are standardised are rows, without running statistics") {
  // As PyTorch exports a batch norm of weights that keeps no statistics: its running ones are computed.
  const auto body = [](const std::string& bias) {
    return "r = Reshape <shape = [1, 4, 18]> (filters)\nt = Transpose <perm = [0, 2, 1]> (r)\n"
           "mean = ReduceMean <axes = [0, 1], keepdims = 0> (t)\nc = ReduceMean <axes = [0, 1], keepdims = 1> (t)\n"
           "d = Sub (t, c)\nq = Mul (d, d)\nvariance = ReduceMean <axes = [0, 1], keepdims = 0> (q)\n" +
           bias + "n, unread, too = BatchNormalization <training_mode = 1> (r, gain, bias, mean, variance)\n" +
           "s = Reshape <shape = [4, 2, 3, 3]> (n)\ny = Conv <pads = [1, 1, 1, 1]> (x, s)\n" + kFlat +
           "#initial float[4, 2, 3, 3] filters = {" + numbers(72) + "}, float[4] gain = {" + numbers(4) + "}";
  };
  const std::string zeros = constant("bias", "value_floats = [0.0, 0.0, 0.0, 0.0]");
  const std::string some = constant("bias", "value_floats = [0.5, -1.0, 0.0, 2.0]");
  for (const std::string& bias : {zeros, some}) {
    const Program rows = program_of(body(bias)), norms = program_of(body(bias), {"fuse_samples"});
    CHECK(count_ops(norms.training().graph, "arbalest.BatchNormTraining") == 1);
    CHECK(count_ops(rows.training().graph, "arbalest.BatchNormTraining") == 0);
    CHECK(count_ops(rows.training().graph, "ReduceMean") == 0);
    CHECK(count_ops(rows.training().graph, "Add") == (bias == some ? 1 : 0));
    check_same(train(norms, 3), train(rows, 3));
  }
}

TEST_CASE("weights that are normalised by statistics of their own, as stored ones would be, are rows, too") {
  const auto body = [](const std::string& read, const std::string& axes, const std::string& squared) {
    return "r = Reshape <shape = [1, 4, 18]> (filters)\ne = Abs (r)\nmean = ReduceMean <axes = [0, 2], keepdims = 0> "
           "(" +
           read + ")\nc = ReduceMean <axes = " + axes + ", keepdims = 1> (r)\nd = Sub (r, c)\nq = Mul (d, " + squared +
           ")\nvariance = ReduceMean <axes = [0, 2], keepdims = 0> (q)\n" +
           constant("bias", "value_floats = [0.5, -1.0, 0.0, 2.0]") +
           "n = BatchNormalization <epsilon = 0.001> (r, gain, bias, mean, variance)\n"
           "s = Reshape <shape = [4, 2, 3, 3]> (n)\ny = Conv <pads = [1, 1, 1, 1]> (x, s)\n" +
           kFlat + "#initial float[4, 2, 3, 3] filters = {" + numbers(72) + "}, float[4] gain = {" + numbers(4) + "}";
  };
  const std::string own = body("r", "[0, 2]", "d");
  const Program rows = program_of(own), norms = program_of(own, {"fuse_samples"});
  CHECK(count_ops(norms.training().graph, "arbalest.BatchNormInference") == 1);
  CHECK(count_ops(rows.training().graph, "arbalest.BatchNormInference") == 0);
  CHECK(count_ops(rows.training().graph, "ReduceMean") == 0);
  check_same(train(norms, 3), train(rows, 3));
  for (const std::string& other : {body("e", "[0, 2]", "d"), body("r", "[0, 1]", "d"), body("r", "[0, 2]", "r")}) {
    CHECK(count_ops(program_of(other).training().graph, "arbalest.BatchNormInference") == 1);
  }
}

TEST_CASE("products read transposed matrices as they lie, and write gradients so") {
  const std::string w = "#initial float[5, 8] w = {" + numbers(40) + "}";
  const std::string t = "t = Transpose <perm = [1, 0]> (w)\n";
  const Graph linear = same_as_without(kTokens + t + "y = MatMul (tokens, t)\n" + kFlat + w);
  CHECK(count_ops(linear, "Transpose") == 0);
  CHECK(count_ops(linear, "MatMul") == 0);
  const ValueId gradient = linear.find_value("w.gradient");
  CHECK(linear.nodes[linear.values[gradient].producer].op->qualified_name() == "arbalest.GemmGradB");
  const std::string rows = "rows = Reshape <shape = [-1, 8]> (x)\n";
  for (const std::string& body :
       {rows + "t = Transpose (w)\nu = Gemm (rows, t)\ny = Reshape <shape = [-1, 45]> (u)\n",
        rows + "t = Transpose (w)\nr = Transpose (t)\nu = Gemm <transB = 1> (rows, r)\ny = Reshape <shape = [-1, 45]> "
               "(u)\n",
        rows + "c = Transpose (rows)\nu = MatMul (w, c)\nv = Transpose (u)\ny = Reshape <shape = [-1, 45]> (v)\n",
        kTokens + "c = Transpose <perm = [0, 2, 1]> (tokens)\ny = MatMul (w, c)\n",
        kTokens +
            "c = Transpose <perm = [0, 2, 1]> (tokens)\ns = MatMul (tokens, c)\nd = MatMul (c, tokens)\n"
            "e = MatMul (c, s)\nf = MatMul (e, tokens)\ng = Add (d, f)\nv = Transpose (w)\ny = MatMul (g, v)\n"}) {
    const Graph graph = same_as_without(body + kFlat + w);
    CHECK(count_ops(graph, "Transpose") <= 2);
    CHECK(count_ops(graph, "MatMul") <= 1);
  }
  // Matrices that meet one B are one product if they are not transposed.
  const Graph tokens = same_as_without(kTokens + "c = Transpose <perm = [0, 2, 1]> (tokens)\n" +
                                       "l = arbalest.Linear <units = 9, axis = -1> (c)\ny = Relu (l)\n" + kFlat);
  CHECK(count_ops(tokens, "Transpose") == 1);
}

TEST_CASE("transpositions that rows go through and come back from are left out") {
  const std::string weights = "#initial float[8, 5] w = {" + numbers(40) + "}, float[5] b = {" + numbers(5) + "}";
  const std::string more = weights + ", float[5, 5] v = {" + numbers(25) + "}";
  const std::string there = kTokens + "t = Transpose <perm = [1, 0, 2]> (tokens)\nm = MatMul (t, w)\na = Add (b, m)\n";
  const Graph simple = same_as_without(there + "y = Transpose <perm = [1, 0, 2]> (a)\n" + kFlat + weights);
  CHECK(count_ops(simple, "Transpose") == 0);
  // Operators of elements may lie between, with constants that all rows have in common.
  for (const char* between : {"m2 = Sigmoid (a)\n", "m2 = Clip (a)\n", "m2 = PRelu (a, b)\n", "m2 = Max (b, a)\n",
                              "two = Constant <value_float = 2.0> ()\nm1 = Erf (a)\nm2 = Pow (m1, two)\n"}) {
    const Graph graph = same_as_without(there + between + "y = Transpose <perm = [1, 0, 2]> (m2)\n" + kFlat + weights);
    CHECK(count_ops(graph, "Transpose") == 0);
  }
  const std::string rows = there + "r = Reshape <shape = [-1, 5]> (a)\ng = Gemm (r, v, b)\nn = Relu (g)\n";
  const Graph flat = same_as_without(
      rows + "s = Reshape <shape = [9, -1, 5]> (n)\ny = Transpose <perm = [1, 0, 2]> (s)\n" + kFlat + more);
  CHECK(count_ops(flat, "Transpose") == 0);
  const Graph one = same_as_without(there + "y = Transpose <perm = [1, 2, 0]> (a)\n" + kFlat + weights);
  CHECK(count_ops(one, "Transpose") == 2);  // and its gradient
  for (const std::string& other :
       {// Rows come together in another way.
        rows + "s = Reshape <shape = [-1, 3, 5]> (n)\ny0 = Transpose <perm = [1, 0, 2]> (s)\ny = Reshape <shape = [-1, "
               "45]> (y0)\n",
        // Something else reads them between.
        there +
            "s = Transpose <perm = [1, 0, 2]> (a)\nc = ReduceSum <axes = [0, 2], keepdims = 0> (a)\nf = Flatten (s)\n"
            "k = ReduceSum <axes = [0], keepdims = 1> (c)\ny = Mul (f, k)\n",
        // Each row gets another addend.
        there + "p = Slice <starts = [0], ends = [1], axes = [1]> (a)\nq = Relu (p)\nz = Add (a, q)\n"
                "y = Transpose <perm = [1, 0, 2]> (z)\n"}) {
    const Graph graph = same_as_without(other + kFlat + (other.find(", v, b)") == std::string::npos ? weights : more));
    CHECK(count_ops(graph, "Transpose") >= 3);
  }
}

// Their product is what leaves images where they are in memory, which products do not read so.
TEST_CASE("two transpositions that bring the last axis to the front are one for rows as well") {
  const std::string turned =
      "r = Reshape <shape = [-1, 3, 4, 6]> (x)\nt = Transpose <perm = [0, 1, 3, 2]> (r)\n"
      "u = Transpose <perm = [0, 2, 1, 3]> (t)\n";
  for (const char* reader : {"m = MatMul (u, w)\n", "c = Identity (u)\nm = MatMul (c, w)\n",
                             "s = Softmax <axis = 2> (u)\nm = MatMul (s, w)\n"}) {
    const Graph graph = same_as_without(turned + reader + "y = Flatten (m)\n" + kFlat + "#initial float[4, 5] w = {" +
                                        numbers(20) + "}");
    CHECK(count_ops(graph, "Transpose") <= 2);  // one, and its gradient
  }
}

TEST_CASE("what is asked for by its name keeps its rows") {
  Graph graph = expanded(kTokens +
                         "t = Transpose <perm = [1, 0, 2]> (tokens)\nm = Relu (t)\n"
                         "y = Transpose <perm = [1, 0, 2]> (m)\n" +
                         kFlat);
  Graph other = graph;
  fuse_transposes(graph, {graph.find_value("m")});
  CHECK(count_ops(graph, "Transpose") == 2);
  fuse_transposes(other, {});
  check_sound(other);
  CHECK(count_ops(other, "Transpose") == 0);
}

TEST_CASE("attention as PyTorch exports it, rows before samples, moves nothing") {
  const std::string parameters = "#initial float[48, 8] w = {" + numbers(48 * 8) + "}, float[48] b = {" + numbers(48) +
                                 "}, float[16, 16] o = {" + numbers(256) + "}, float[16] c = {" + numbers(16) + "}";
  const auto heads = [](const char* to, const char* index) {
    return constant(fmt::format("{}i", to), index) +
           fmt::format(
               "{0}g = Gather (five, {0}i)\n{0}r = Reshape <shape = [9, -1, 8]> ({0}g)\n"
               "{0}t = Transpose <perm = [1, 0, 2]> ({0}r)\n{0} = Reshape <shape = [-1, 2, 9, 8]> ({0}t)\n",
               to);
  };
  const std::string body =
      kTokens +
      "first = Transpose <perm = [1, 0, 2]> (tokens)\nwt = Transpose <perm = [1, 0]> (w)\n"
      "m = MatMul (first, wt)\nqkv = Add (b, m)\nfour = Reshape <shape = [9, -1, 3, 16]> (qkv)\n"
      "up = Unsqueeze <axes = [0]> (four)\nturned = Transpose <perm = [3, 1, 2, 0, 4]> (up)\n"
      "five = Squeeze <axes = [3]> (turned)\n" +
      heads("q", "value_int = 0") + heads("k", "value_int = 1") + heads("v", "value_int = 2") +
      "kc = Transpose <perm = [0, 1, 3, 2]> (k)\ns = MatMul (q, kc)\np = Softmax (s)\na = MatMul (p, v)\n"
      "at = Transpose <perm = [2, 0, 1, 3]> (a)\nar = Reshape <shape = [-1, 16]> (at)\n"
      "ag = Gemm <transB = 1> (ar, o, c)\nas = Reshape <shape = [9, -1, 16]> (ag)\n"
      "y = Transpose <perm = [1, 0, 2]> (as)\n" +
      kFlat + parameters;
  const Graph fused = same_as_without(body);
  CHECK(count_ops(fused, "arbalest.PackedAttention") == 1);
  CHECK(count_all(fused, {"Transpose", "Slice", "Gather", "arbalest.SliceGrad", "arbalest.Assemble"}) == 0);
  check_same(train(program_of(body, {"fuse_attention"}), 3), train(program_of(body), 3));
}

TEST_CASE("windows of a sample take turns with attention's bias, each with its mask") {
  for (const int windows : {2, 1}) {
    // Windows of 9 tokens for each of 4 samples, in 2 heads of 8; the last one's last tokens are apart.
    INFO(windows);
    const int numbers_of_mask = 81 * windows;
    std::string mask = fmt::format("float[{}, 9, 9] mask = {{", windows);
    for (int i = 0; i < numbers_of_mask; ++i)
      mask += fmt::format("{}{}", i ? ", " : "", i / 81 == windows - 1 && i % 9 > 5 ? "-5.0" : "0.0");
    const std::string parameters = "#initial float[2, 9, 9] table = {" + numbers(162) + "}, " + mask + "}";
    std::string body =
        kTokens + "t = Concat <axis = 1> (tokens" + (windows == 2 ? ", tokens" : "") +
        ")\nu = Reshape <shape = [-1, 9, 8]> (t)\n" +
        "qkv = arbalest.Linear <units = 48, axis = -1> (u)\nfive = Reshape <shape = [-1, 9, 3, 2, 8]> (qkv)\n"
        "moved = Transpose <perm = [2, 0, 3, 1, 4]> (five)\n";
    for (const auto& [to, index] : {std::pair("q", 0), {"k", 1}, {"v", 2}})
      body += constant(fmt::format("{}i", to), fmt::format("value_int = {}", index)) +
              fmt::format("{0} = Gather (moved, {0}i)\n", to);
    body += fmt::format(
                "kt = Transpose <perm = [0, 1, 3, 2]> (k)\ns0 = MatMul (q, kt)\ns1 = Add (s0, table)\n"
                "s2 = Reshape <shape = [-1, {0}, 2, 9, 9]> (s1)\nm = Unsqueeze <axes = [0, 2]> (mask)\n"
                "s3 = Add (s2, m)\n"
                "s4 = Reshape <shape = [-1, 2, 9, 9]> (s3)\np = Softmax (s4)\nd = arbalest.Dropout <ratio = 0.0> (p)\n"
                "a = MatMul (d, v)\nb = Transpose <perm = [0, 2, 1, 3]> (a)\ny = Reshape <shape = [-1, {1}]> (b)\n",
                windows, 144 * windows) +
            kFlat + parameters;
    const Program program = program_of(body);
    CHECK(count_ops(program.training().graph, "arbalest.PackedAttention") == 1);
    CHECK(count_ops(program.training().graph, "Softmax") == 0);
    const Graph& validation = program.find(LoopRole::Validate)->graph;
    const Node& attention = only(validation, "arbalest.PackedAttention");
    REQUIRE(attention.inputs.size() == 2);
    CHECK(validation.values[attention.inputs[1]].type.shape == Shape{windows, 2, 9, 9});
    check_same(train(program_of(body, {"fuse_attention"}), 3), train(program, 3));
  }
}

TEST_CASE("attention of samples that have several axes, with a factor for each head") {
  // 3 groups of 3 tokens for each of 4 samples, in 2 heads of 8: (4, 3, 2, 3, 8).
  const auto part = [](const char* name, int first, const char* perm) {
    return fmt::format(
        "{0}3 = Slice <starts = [{1}], ends = [{2}], axes = [3]> (qkv)\n{0}4 = Reshape <shape = [0, 0, 0, 2, 8]> "
        "({0}3)\n"
        "{0} = Transpose <perm = {3}> ({0}4)\n",
        name, first, first + 16, perm);
  };
  const std::string heads = "[0, 1, 3, 2, 4]";
  const std::string begin = kTokens + "g = Reshape <shape = [-1, 3, 3, 8]> (tokens)\n" +
                            "qkv = arbalest.Linear <units = 48, axis = -1> (g)\n" + part("q", 0, heads.c_str()) +
                            part("k0", 16, heads.c_str()) + part("v", 32, heads.c_str()) +
                            constant("scale", "value_float = 0.35") +
                            "k1 = Mul (k0, scale)\nk = Transpose <perm = [0, 1, 2, 4, 3]> (k1)\ns0 = MatMul (q, k)\n";
  const std::string end =
      "w = Softmax <axis = -1> (s)\na = MatMul (w, v)\nt = Transpose <perm = [0, 1, 3, 2, 4]> (a)\n"
      "y = Reshape <shape = [0, 9, 16]> (t)\n" +
      kFlat;
  const auto fused = [&](const std::string& between, const std::string& parameters, const char* op) {
    const std::string text = begin + between + end + parameters;
    INFO(text);
    const Program program = program_of(text);
    CHECK(count_ops(program.training().graph, op) == 1);
    CHECK(count_ops(program.training().graph, "Softmax") == 0);
    check_same(train(program_of(text, {"fuse_attention"}), 3), train(program, 3));
  };
  const auto initial = [](const char* name, const char* shape, int count) {
    return fmt::format("#initial float[{}] {} = {{{}}}", shape, name, numbers(count));
  };
  const char *packed = "arbalest.PackedAttention", *apart = "arbalest.Attention";
  fused("s = Add (s0, b)\n", initial("b", "2, 3, 3", 18), packed);
  fused("s = Add (b, s0)\n", initial("b", "3, 2, 3, 3", 54), packed);
  fused("s = Add (s0, b)\n", initial("b", "1, 3, 1, 3, 3", 27), packed);
  fused("s1 = Mul (s0, f)\ns = Add (s1, b)\n",
        initial("f", "2, 1, 1", 2) + ", float[2, 3, 3] b = {" + numbers(18) + "}", apart);
  fused("s = Mul (f, s0)\n", initial("f", "1, 2, 1, 1", 2), apart);
}

TEST_CASE("products of rows and one matrix take the bias that is added to them") {
  const std::string weights = "#initial float[8, 8] w = {" + numbers(64) + "}, float[8] b = {" + numbers(8) + "}";
  const auto biased = [&](const std::string& body) {
    const std::string text = kTokens + body + kFlat + weights;
    INFO(body);
    const Program program = program_of(text);
    check_same(train(program_of(text, {"fuse_biases"}), 3), train(program, 3));
    return count_ops(program.training().graph, "Gemm") -
           count_ops(program_of(text, {"fuse_biases"}).training().graph, "Gemm");
  };
  CHECK(biased("m = MatMul (tokens, w)\ny = Add (m, b)\n") == 1);
  CHECK(biased("t = Transpose <perm = [1, 0]> (w)\nm = MatMul (tokens, t)\ny = Add (b, m)\n") == 1);
  CHECK(biased("r = Reshape <shape = [-1, 8]> (tokens)\nm = MatMul (r, w)\na = Add (m, b)\n"
               "y = Reshape <shape = [-1, 9, 8]> (a)\n") == 1);
  // Others read the product, or each row has a number of its own.
  CHECK(biased("m = MatMul (tokens, w)\na = Add (m, b)\ny = Mul (a, m)\n") == 0);
  CHECK(biased("c = Constant <value = float[9, 1] {" + numbers(9) +
               "}> ()\nm = MatMul (tokens, w)\na = Add (m, c)\n"
               "y = Add (a, b)\n") == 0);
}

TEST_CASE("parts of rows that Slice takes are packed, too") {
  std::string body = kTokens + "qkv = arbalest.Linear <units = 48, axis = -1> (tokens)\n";
  for (const auto& [to, begin, perm] :
       {std::tuple("q", 0, "[0, 2, 1, 3]"), {"k", 16, "[0, 2, 3, 1]"}, {"v", 32, "[0, 2, 1, 3]"}}) {
    body += fmt::format(
        "{0}3 = Slice <starts = [{1}], ends = [{2}], axes = [2]> (qkv)\n"
        "{0}4 = Reshape <shape = [0, 0, 2, 8]> ({0}3)\n{0} = Transpose <perm = {3}> ({0}4)\n",
        to, begin, begin + 16, perm);
  }
  const Graph graph = same_as_without(body + "s = MatMul (q, k)\np = Softmax (s)\ny = MatMul (p, v)\n" + kFlat);
  CHECK(count_ops(graph, "arbalest.PackedAttention") == 1);
  CHECK(count_all(graph, {"Slice", "Transpose", "arbalest.SliceGrad"}) == 0);
}

TEST_CASE("what drops nothing is not there") {
  const Graph graph = same_as_without(kWide +
                                      "a = arbalest.Dropout <ratio = 0.0> (wide)\nb = arbalest.StochasticDepth (a)\n"
                                      "r = Constant <value_float = 0.0> ()\nt = Constant <value = bool {1}> ()\n"
                                      "y, mask = Dropout (b, r, t)\n" +
                                      kFlat);
  CHECK(count_all(graph, {"Dropout", "arbalest.DropoutGrad", "arbalest.StochasticDepth", "Identity"}) == 0);
  const Graph masked = expanded(kWide +
                                "r = Constant <value_float = 0.0> ()\nt = Constant <value = bool {1}> ()\n"
                                "d, mask = Dropout (wide, r, t)\nm = Cast <to = 1> (mask)\ny = Mul (d, m)\n" +
                                kFlat);
  CHECK(count_ops(masked, "Dropout") == 1);
}

TEST_CASE("constants are in bfloat16 from the start, and gradients are cast once") {
  const std::string body = kTokens +
                           "t = Transpose <perm = [1, 0]> (w)\nm = MatMul (tokens, t)\n"
                           "s = Constant <value_float = 1.5> ()\nd = Div (m, s)\nf = Cast <to = 1> (d)\n"
                           "y = Mul (f, s)\n" +
                           kFlat + "#initial float[5, 8] w = {" + numbers(40) + "}";
  const Program program = program_of_net(body, true);
  const Graph& graph = program.training().graph;
  for (const Node& node : graph.nodes) {
    if (node.op->name != "Cast") continue;
    INFO(node.name);
    const Value &from = graph.values[node.inputs[0]], &to = graph.values[node.outputs[0]];
    CHECK(from.role != Role::Constant);
    CHECK(from.type.dtype != to.type.dtype);
  }
  const Value& lowered = value(graph, "s.bf16");
  CHECK(lowered.role == Role::Constant);
  CHECK(lowered.type.dtype == DataType::Bfloat16);
  REQUIRE(lowered.initializer.data);
  bfloat16 number;
  std::memcpy(&number, lowered.initializer.data->data(), sizeof number);
  CHECK(float(number) == 1.5f);
}

TEST_CASE("gradients of parameters that are reshaped stay float") {
  const std::string body = kTokens + "r = Reshape <shape = [1, 8]> (scale)\ny = Mul (tokens, r)\n" + kFlat +
                           "#initial float[8] scale = {" + numbers(8) + "}";
  const Program program = program_of_net(body, true);
  const Graph& graph = program.training().graph;
  CHECK(value(graph, "scale.gradient").type.dtype == DataType::Float32);
  const std::string& made = graph.nodes[value(graph, "scale.gradient").producer].op->name;
  CHECK(made == "Reshape");
  for (const Node& node : graph.nodes) {
    const bool gradient = node.stage == Stage::Backward && node.op->name == "Cast";
    CHECK_MESSAGE(!(gradient && graph.values[node.inputs[0]].type.shape == Shape{1, 8}), node.name);
  }
}

TEST_CASE("channel shuffles keep the layout of images, and are copied with what surrounds them") {
  // Blocks as ShuffleNetV2 has them: half of the channels pass, half are convolved, and both are dealt out anew.
  const auto block = [](int i, const std::string& x, const std::string& shape) {
    return fmt::format(
        "p{0} = Slice <starts = [0], ends = [6], axes = [1]> ({1})\nq{0} = Slice <starts = [6], ends = [12], axes = "
        "[1]> ({1})\nc{0} = arbalest.Conv <kernel_shape = [1, 1], filters = 6> (q{0})\nr{0} = Relu (c{0})\n"
        "m{0} = Concat <axis = 1> (p{0}, r{0})\ng{0} = Reshape <shape = {2}> (m{0})\n"
        "t{0} = Transpose <perm = [0, 2, 1, 3, 4]> (g{0})\ns{0} = Reshape <shape = [0, 12, 2, 3]> (t{0})\n",
        i, x, shape);
  };
  const std::string images =
      "pixels = Reshape <shape = [0, 12, 2, 3]> (x)\nc0 = arbalest.Conv <kernel_shape = [1, 1], filters = 12> "
      "(pixels)\n";
  const std::string body = images + block(1, "c0", "[0, 2, 6, 2, 3]") + block(2, "s1", "[0, 3, 4, 2, 3]") +
                           "h = GlobalAveragePool (s2)\n" + kHead;
  const Program program = program_of(body), apart = program_of(body, {"fuse_shuffles"});
  check_same(train(apart, 3), train(program, 3));
  const Graph &graph = program.training().graph, &without = apart.training().graph;
  CHECK(count_ops(graph, "arbalest.Interleave") == 0);  // all are part of an Assemble
  CHECK(count_ops(graph, "Slice") == 1);                // what the first convolution of the blocks reads
  const auto turns = [](const Graph& of) { return count_all(of, {"Transpose", "arbalest.ChangeLayout"}); };
  CHECK(turns(graph) + 4 <= turns(without));

  // Other axes, and parts that are not groups, stay as they are.
  for (const std::string other :
       {"g = Reshape <shape = [0, 2, 6, 2, 3]> (c0)\nt = Transpose <perm = [0, 2, 1, 4, 3]> (g)\n",
        "g = Reshape <shape = [0, 12, 2, 3, 1]> (c0)\nt = Transpose <perm = [0, 2, 1, 3, 4]> (g)\n"}) {
    const Program same = program_of(images + other + "y = Reshape <shape = [0, 12, 2, 3]> (t)\n" + kFlat);
    CHECK(count_ops(same.training().graph, "arbalest.Interleave") == 0);
  }
}

}  // namespace moves_test
