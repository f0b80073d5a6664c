// SPDX-License-Identifier: Apache-2.0

// Norms of groups of channels: what exporters spell out is found, and sums with elementwise operators compute what
// norms of rows do.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "ops/norm/group_norm.h"
#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace group_norms_test {
namespace {

// As PyTorch writes GroupNorm below opset 21: the groups as channels of a norm without numbers of its own.
std::string spelled(const std::string& x, int groups) {
  return fmt::format(
      "one = Constant <value_floats = [{0}]> ()\nzero = Constant <value_floats = [{1}]> ()\n"
      "r = Reshape <shape = [0, {2}, -1]> ({3})\nn = InstanceNormalization <epsilon = 0.01> (r, one, zero)\n"
      "shape = Shape ({3})\nq = Reshape (n, shape)\ns = Unsqueeze <axes = [1, 2]> (w)\nt = Unsqueeze <axes = [1, 2]> "
      "(b)\nm = Mul (q, s)\ny = Add (m, t)\n",
      groups == 3 ? "1.0, 1.0, 1.0" : "1.0, 1.0, 1.0, 1.0", groups == 3 ? "0.0, 0.0, 0.0" : "0.0, 0.0, 0.0, 0.0",
      groups, x);
}
const std::string kOperator = "y = GroupNormalization <num_groups = 3, epsilon = 0.01> (c, w, b)\n";

const std::string kConv = "c = arbalest.Conv <filters = 6, kernel_shape = [3, 3]> (x)\n";  // float[4, 6, 6, 6]

// A net whose y `norm` makes of c. Its scale w and bias b are trained, too.
std::string net_of(const std::string& norm, const std::string& before = kConv) {
  return before + norm +
         "v = Sigmoid (y)\nz = Mul (v, y)\nd = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (z)\n"
         "h = GlobalAveragePool (d)\n" +
         kHead + "#initial float[6] w = {0.5, 1.5, 1, 2, -1, 0.25}, float[6] b = {0.1, 0.2, 0.3, -0.1, -0.2, 0}";
}

Program made(const std::string& body, bool generated, bool bf16 = false, int64_t batch = 4) {
  ProgramOptions options{.bf16 = bf16, .generated_kernels = generated};
  Graph graph = net(body);
  for (Node& node : graph.nodes) {
    if (node.op->name == "Prefetch") node.attributes.set("batch", batch);
  }
  verify(graph);
  Program program = make_program(std::move(graph), options);
  check_sound(program.training().graph);
  check_sound(program.find(LoopRole::Validate)->graph);
  return program;
}

int64_t count(const Program& program, std::string_view op) {
  return count_ops(program.training().graph, op);
}

Numbers run(const Program& program, DataType floats = DataType::Float64) {
  return numbers_of(program, {}, *make_cpu_device(), floats);
}

// Norms of rows and what is generated make the same numbers.
void check_same(const std::string& body) {
  INFO(body);
  CHECK(difference(run(made(body, false)), run(made(body, true)), 1e-9) == "");
}

}  // namespace

TEST_CASE("norms of groups are sums of channels and elementwise operators where kernels are generated") {
  for (const std::string& norm : {kOperator, spelled("c", 3)}) {
    INFO(norm);
    const Program opened = made(net_of(norm), true), rows = made(net_of(norm), false);
    CHECK(count(opened, kGroupMoments) == 1);
    CHECK(count(opened, kGroupMean) == 2);  // takes the mean off before it squares, and one of the gradient
    CHECK(count(opened, "arbalest.Normalize") == 0);
    CHECK(count(opened, "arbalest.ChangeLayout") == 0);
    CHECK(count(rows, "arbalest.Normalize") == 1);
    CHECK(count(rows, "arbalest.NormalizeGrad") == 1);
    CHECK(count(rows, kGroupMoments) == 0);
    check_same(net_of(norm));
    for (const char* name : {"w.gradient", "b.gradient"}) {  // which regions write where they belong
      const Graph& graph = opened.training().graph;
      CHECK(graph.nodes[value(graph, name).producer].is("arbalest.Region"));
    }
    const Program lowered = made(net_of(norm), true, true);
    CHECK(count(lowered, kGroupMoments) == 1);
    CHECK(count(lowered, kGroupMean) == 1);
    for (const Node& node : lowered.training().graph.nodes) {
      if (!node.is(kGroupMoments)) continue;
      for (const ValueId input : node.inputs) {
        CHECK(lowered.training().graph.values[input].type.dtype == DataType::Float32);
      }
    }
    CHECK(difference(run(made(net_of(norm), false, true)), run(lowered), 0.05) == "");
  }
  CHECK(difference(run(made(net_of(kOperator), true)), run(made(net_of(spelled("c", 3)), true)), 1e-9) == "");
}

TEST_CASE("norms of each channel, of scales for groups, of rows of channels, and two of one image") {
  check_same(net_of("y = InstanceNormalization <epsilon = 0.01> (c, w, b)\n"));
  const std::string scaled =
      "s = Unsqueeze <axes = [1, 2]> (w)\nt = Unsqueeze <axes = [1, 2]> (b)\nm = Mul (g, s)\ny = Add (m, t)\n";
  check_same(
      net_of("f = Constant <value_floats = [0.5, 2.0, -1.0]> ()\n"
             "g = GroupNormalization <num_groups = 3, epsilon = 0.01> (c, f, f)\n" +
             scaled));
  check_same(
      net_of("p = Flatten (c)\no = Reshape <shape = [0, 6, 36]> (p)\n"
             "i = GroupNormalization <num_groups = 2> (o, w, b)\ny = Reshape <shape = [0, 6, 6, 6]> (i)\n"));
  check_same(
      net_of("i = GroupNormalization <num_groups = 3> (c, w, b)\n"
             "j = GroupNormalization <num_groups = 2, epsilon = 0.1> (c, w, b)\ny = Add (i, j)\n"));
}

TEST_CASE("norms of pixels and of groups that are written out are found") {
  const std::string first =
      "more = Constant <value_float = 0.01> ()\naxes = Constant <value_ints = [2, 3]> ()\n"
      "last = Constant <value_ints = [2]> ()\n";
  const auto norm = [](const std::string& x, const std::string& axes) {
    return fmt::format(
        "u = ReduceMean ({0}, {1})\ne = Sub ({0}, u)\np = Mul (e, e)\na = ReduceMean (p, {1})\no = Add (a, more)\n"
        "r = Sqrt (o)\nn = Div (e, r)\n",
        x, axes);
  };
  const std::string scaled =
      "s = Unsqueeze <axes = [1, 2]> (w)\nt = Unsqueeze <axes = [1, 2]> (b)\nm = Mul (q, s)\ny = Add (m, t)\n";
  for (const std::string& body : {first + norm("c", "axes") + "q = Identity (n)\n" + scaled,
                                  first + "g = Reshape <shape = [0, 3, -1]> (c)\n" + norm("g", "last") +
                                      "shape = Shape (c)\nq = Reshape (n, shape)\n" + scaled}) {
    INFO(body);
    const Program program = made(net_of(body), true);
    CHECK(count(program, kGroupMoments) == 1);
    CHECK(count(program, "arbalest.ChangeLayout") == 0);
    check_same(net_of(body));
    ProgramOptions spelled{.without = {"fuse_norms"}};
    CHECK(difference(run(make_program(net(net_of(body)), spelled)), run(program), 1e-9) == "");
  }
}

TEST_CASE("a norm of groups of rows, and one of numbers that a cast made") {
  const std::string rows =
      "p = GlobalAveragePool (x)\nk = arbalest.Conv <filters = 6, kernel_shape = [1, 1]> (p)\nf = Flatten (k)\n";
  const std::string image = "y = Reshape <shape = [0, 6, 1, 1]> (i)\n";
  const std::string stated =
      net_of("i = GroupNormalization <num_groups = 3, epsilon = 0.01> (f, w, b)\n" + image, rows);
  const std::string spelled = net_of(
      "one = Constant <value_floats = [1.0, 1.0, 1.0]> ()\nzero = Constant <value_floats = [0.0, 0.0, 0.0]> ()\n"
      "r = Reshape <shape = [0, 3, -1]> (f)\nn = InstanceNormalization <epsilon = 0.01> (r, one, zero)\n"
      "q = Reshape <shape = [0, 6]> (n)\nm = Mul (q, w)\ni = Add (m, b)\n" +
          image,
      rows);
  check_same(stated);
  CHECK(difference(run(made(stated, true)), run(made(spelled, true)), 1e-9) == "");
  // A region reads what was cast as it was before: the mean is taken off before squares are summed.
  const std::string cast = net_of(
      "one = Constant <value_floats = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]> ()\n"
      "zero = Constant <value_floats = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]> ()\ne = Cast <to = 16> (c)\n"
      "i = InstanceNormalization (e, one, zero)\nq = Cast <to = 1> (i)\ns = Unsqueeze <axes = [1, 2]> (w)\n"
      "t = Unsqueeze <axes = [1, 2]> (b)\nm = Mul (q, s)\ny = Add (m, t)\n");
  CHECK(count(made(cast, true), kGroupMean) == 2);
}

TEST_CASE("norms of groups after convolutions of other ranks, and of one pixel") {
  const std::string line =
      "o = Reshape <shape = [0, 2, 36]> (x)\nc = arbalest.Conv <filters = 6, kernel_shape = [3]> (o)\n";
  const std::string volume =
      "o = Reshape <shape = [0, 2, 1, 6, 6]> (x)\n"
      "c = arbalest.Conv <filters = 6, kernel_shape = [1, 3, 3], pads = [0, 1, 1, 0, 1, 1]> (o)\n";
  for (const std::string& before : {line, volume}) {
    check_same(
        net_of("i = GroupNormalization <num_groups = 3> (c, w, b)\ny = Reshape <shape = [0, 6, 6, 6]> (i)\n", before));
  }
  check_same(
      net_of(kOperator, "p = GlobalAveragePool (x)\nc = arbalest.Conv <filters = 6, kernel_shape = [1, 1]> (p)\n"));
}

TEST_CASE("sums of a norm of groups join regions in a batch of any size") {
  for (const int64_t batch : {1, 4}) {
    CAPTURE(batch);
    const Program lowered = made(net_of(kOperator), true, true, batch);
    CHECK(count(lowered, "ReduceMean") == 0);
    CHECK(count(lowered, "arbalest.ChannelSum") == 1);  // of the last layer's bias
    CHECK(difference(run(made(net_of(kOperator), false, true, batch)), run(lowered), 0.05) == "");
    CHECK(difference(run(made(net_of(kOperator), false, false, batch)),
                     run(made(net_of(kOperator), true, false, batch)), 1e-9) == "");
  }
}

TEST_CASE("a norm of no samples adds nothing") {
  const std::string none =
      "n = Constant <value_ints = [0]> ()\nk = arbalest.Conv <filters = 6, kernel_shape = [3, 3]> (x)\n"
      "c = Slice (k, n, n, n)\n";
  const std::string norm =
      "e = GroupNormalization <num_groups = 3> (c, w, b)\nq = ReduceSum <keepdims = 0> (e)\ny = Add (k, q)\n";
  check_same(net_of(norm, none));
  // Nor does one of images without columns.
  const std::string narrow =
      "n = Constant <value_ints = [0]> ()\nk = arbalest.Conv <filters = 6, kernel_shape = [3, 3]> (x)\n"
      "last = Constant <value_ints = [3]> ()\nc = Slice (k, n, n, last)\n";
  check_same(net_of(norm, narrow));
}

TEST_CASE("a large mean costs a norm of groups no digits in float") {
  const std::string body = net_of(kOperator,
                                  "k = arbalest.Conv <filters = 6, kernel_shape = [3, 3]> (x)\n"
                                  "far = Constant <value_float = 300.0> ()\nc = Add (k, far)\n");
  CHECK(difference(run(made(body, true)), run(made(body, true), DataType::Float32), 2e-3) == "");
}

TEST_CASE("a norm of channels of another shape is none of groups if it parts channels") {
  const Program program = made(net_of(spelled("c", 4)), true);
  CHECK(count(program, "arbalest.Normalize") == 1);
  CHECK(difference(run(made(net_of(spelled("c", 4)), false)), run(program), 1e-9) == "");
}

}  // namespace group_norms_test
