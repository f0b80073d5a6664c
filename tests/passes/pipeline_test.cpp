// SPDX-License-Identifier: Apache-2.0

// The table of passes: every graph is checked after every pass, and any optional one may be left out.

#include <doctest/doctest.h>

#include <fmt/ranges.h>

#include <set>

#include "passes/pipeline.h"
#include "tests/graph/file_fixture.h"
#include "tests/passes/in_double.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace pipeline_test {
namespace {

// Nets of which each has what some optional pass looks for.
const std::vector<std::string>& nets() {
  const auto conv = [](const char* name, const char* input, const char* more = "") {
    return fmt::format("{} = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]{}> ({})\n", name, more, input);
  };
  static const std::vector<std::string> nets = {
      kResidual,
      // Few channels, and a block that projects its input.
      conv("a", "x") + conv("b", "a", ", relu = 0") +
          "p = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (x)\n"
          "s = Add (b, p)\nr = Relu (s)\n" +
          conv("d", "r") + "t = Add (d, r)\nh = GlobalAveragePool (t)\n" + kHead,
      // A norm of groups, and a sum, of pixels that are one axis.
      "c = arbalest.Conv <filters = 8, kernel_shape = [3, 3]> (x)\np = Reshape <shape = [0, 8, -1]> (c)\n"
      "n = GroupNormalization <num_groups = 2> (p, scale, shift)\na = Add (p, n)\n"
      "i = Reshape <shape = [0, 8, 6, 6]> (a)\nh = GlobalAveragePool (i)\n" +
          std::string(kHead) + "#initial float[8] scale = {" + numbers(8) + "}, float[8] shift = {" + numbers(8) + "}",
      // Relu after a convolution, and a pool after that.
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\nr = Relu (c)\n"
      "h = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)\n" +
          kHead,
      // Batch norms over what a Concat puts together.
      "a = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (x)\nn1 = arbalest.BatchNorm (a)\nr1 = Relu (n1)\n"
      "b = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (r1)\nab = Concat <axis = 1> (a, b)\n"
      "n2 = arbalest.BatchNorm (ab)\nr2 = Relu (n2)\nc = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (r2)\n"
      "abc = Concat <axis = 1> (ab, c)\nn3 = arbalest.BatchNorm (abc)\nh = GlobalAveragePool (n3)\n" +
          kHead,
      // A batch norm between an activation and a sum.
      conv("a", "x", ", relu = 0") + "g = Sigmoid (a)\ns = Mul (a, g)\n" + conv("b", "s", ", relu = 0") +
          "t = Add (b, s)\nu = Sigmoid (t)\nh = GlobalAveragePool (u)\n" + kHead,
      // A residual that a product is added to.
      "r = Flatten (x)\na = arbalest.Linear <units = 72> (r)\nn = LayerNormalization <axis = 1> (a, weight)\n"
      "b = arbalest.Linear <units = 72> (n)\nt = Add (a, b)\nh = LayerNormalization <axis = 1> (t, weight)\n" +
          std::string(kHead) + "#initial float[72] weight = {" + numbers(72) + "}",
      // A norm of rows that is spelled out.
      "two = Constant <value_float = 2.0> ()\nmore = Constant <value_float = 0.01> ()\n"
      "axes = Constant <value_ints = [1]> ()\nr = Flatten (x)\na = arbalest.Linear <units = 72> (r)\n"
      "p = Pow (a, two)\nm = ReduceMean (p, axes)\ns = Add (m, more)\nd = Sqrt (s)\nh = Div (a, d)\n" +
          kHead,
      // Logarithms of probabilities.
      "r = Flatten (x)\na = arbalest.Linear <units = 8> (r)\np = Sigmoid (a)\nh = Log (p)\n" + kHead,
      // A number that scales images, and a weight that is squared before it is read.
      "c = arbalest.Conv <filters = 256, kernel_shape = [3, 3]> (x)\nr = Relu (c)\ns = Mul (r, factor)\n"
      "p = GlobalAveragePool (s)\nrows = Flatten (p)\nsquare = Mul (w, w)\nh = MatMul (rows, square)\n" +
          std::string(kHead) + "#initial float[256, 4] w = {" + numbers(1024) + "}, float[1] factor = {0.8}",
      // Attention, of rows that one product makes.
      "tokens = Reshape <shape = [0, 9, 8]> (x)\nqkv = arbalest.Linear <units = 48, axis = -1> (tokens)\n"
      "q3, k3, v3 = Split <axis = 2> (qkv)\n"
      "q4 = Reshape <shape = [0, 0, 2, 8]> (q3)\nq = Transpose <perm = [0, 2, 1, 3]> (q4)\n"
      "k4 = Reshape <shape = [0, 0, 2, 8]> (k3)\nk = Transpose <perm = [0, 2, 3, 1]> (k4)\n"
      "v4 = Reshape <shape = [0, 0, 2, 8]> (v3)\nv = Transpose <perm = [0, 2, 1, 3]> (v4)\n"
      "s = MatMul (q, k)\nw = Softmax (s)\na = MatMul (w, v)\nt = Transpose <perm = [0, 2, 1, 3]> (a)\n"
      "h = Flatten (t)\n" +
          kHead,
      // One group of channels, as PyTorch exports it.
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\nr = Reshape <shape = [0, 1, -1]> (c)\n"
      "n = InstanceNormalization (r, one, zero)\nb = Reshape <shape = [0, 4, 6, 6]> (n)\n"
      "s = Mul (b, scale)\nt = Add (s, c)\nd = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (t)\n"
      "h = GlobalAveragePool (d)\n" +
          kHead + "#initial float[1] one = {1.5}, float[1] zero = {0.5}, float[4, 1, 1] scale = {" + numbers(4) + "}",
      // A gate whose halves one activation makes.
      "tokens = Reshape <shape = [0, 9, 8]> (x)\nwide = arbalest.Linear <units = 32, axis = -1> (tokens)\n"
      "e = Erf (wide)\ng = Mul (wide, e)\nu, v = Split <axis = 2, num_outputs = 2> (g)\n"
      "n = LayerNormalization (v, weight)\nm = Mul (u, n)\nh = Flatten (m)\n" +
          std::string(kHead) + "#initial float[16] weight = {" + numbers(16) + "}",
      // A norm of each channel's pixels, and a multiple of what Relu makes.
      "c = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\ns = Sigmoid (c)\n"
      "l = ReduceL2 <axes = [2, 3]> (s)\nt = Mul (s, l)\nr = Relu (t)\nf = Constant <value_float = 1.5> ()\n"
      "u = Mul (r, f)\nd = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (u)\nh = GlobalAveragePool (d)\n" +
          kHead,
      // A channel shuffle.
      "c = arbalest.Conv <filters = 8, kernel_shape = [3, 3]> (x)\ng = Reshape <shape = [0, 2, 4, 6, 6]> (c)\n"
      "t = Transpose <perm = [0, 2, 1, 3, 4]> (g)\ns = Reshape <shape = [0, 8, 6, 6]> (t)\n"
      "d = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (s)\nh = GlobalAveragePool (d)\n" +
          kHead,
      // Pixels as rows.
      "c = arbalest.Conv <filters = 8, kernel_shape = [2, 2], strides = [2, 2]> (x)\n"
      "f = Reshape <shape = [0, 8, -1]> (c)\nt = Transpose <perm = [0, 2, 1]> (f)\n"
      "y = arbalest.Linear <units = 5, axis = -1> (t)\nh = Flatten (y)\n" +
          kHead,
      // Moves as exporters write them.
      "tokens = Reshape <shape = [0, 9, 8]> (x)\nwide = arbalest.Linear <units = 8, axis = -1> (tokens)\n"
      "t = Transpose <perm = [1, 0, 2]> (wide)\nr = Relu (t)\nu = Transpose <perm = [1, 0, 2]> (r)\n"
      "i = Constant <value_int = 1> ()\ng = Gather <axis = 1> (u, i)\n"
      "a = Slice <starts = [0], ends = [4], axes = [1]> (g)\nb = Slice <starts = [4], ends = [8], axes = [1]> (g)\n"
      "m = MatMul (b, w)\nn = Add (m, bias)\nh = Mul (a, n)\n" +
          kHead + "#initial float[4, 4] w = {" + numbers(16) + "}, float[4] bias = {" + numbers(4) + "}",
      // Six steps of a recurrent layer.
      "rows = Transpose <perm = [2, 0, 1, 3]> (x)\nsteps = Reshape <shape = [6, 0, 12]> (rows)\n"
      "y, last = LSTM (steps, w, r)\nh = Squeeze <axes = [0]> (last)\n" +
          kHead + "#initial float[1, 8, 12] w = {" + numbers(96) + "}, float[1, 8, 2] r = {" + numbers(16) + "}",
      kShared,
      // Products of two kinds, and another reader of the matrix.
      "flat = Flatten (x)\npositive = Relu (flat)\na = Gemm (flat, w)\nb = Gemm <alpha = 0.5> (flat, w)\n"
      "c = Gemm (positive, w)\nd = Gemm <alpha = 0.5> (positive, w)\nt = Mul (w, w)\ne = MatMul (positive, t)\n"
      "f = Sum (a, b, c, d, e)\nlogits = Tanh (f)\n" +
          std::string(kLoss) + "#initial float[72, 3] w = {" + numbers(72 * 3) + "}",
  };
  return nets;
}

std::string text_of(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes) {
    text += fmt::format("{} {}", node.name, node.op->qualified_name());
    for (const ValueId v : node.inputs) text += " " + (v == kNone ? "-" : graph.values[v].name);
    text += "\n";
  }
  return text;
}

// The message of the check after a pass that changes a program so.
std::string fault_after(void (*run)(const Passage&, Loop&)) {
  Program program = program_of_net(kResidual);
  const ProgramOptions options;
  ProgramNotes notes;
  const Pass pass = {"break", Pass::On::Training, true, [](const ProgramOptions&) { return true; }, run, ""};
  try {
    run_pass(pass, {program, options, notes});
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the table of passes names each once, with a reason for its place") {
  std::set<std::string_view> names;
  for (const Pass& pass : passes()) {
    INFO(pass.name);
    CHECK(names.insert(pass.name).second);
    CHECK(pass.reason.size() > 20);
  }
  std::vector<std::string> seen;
  ProgramOptions options;
  options.after = [&](std::string_view name, const Graph&) { seen.emplace_back(name); };
  make_program(net(kResidual), options);
  std::vector<std::string> all = pass_names();
  REQUIRE(all.back() == "recompute");  // which comes when the program is planned
  all.pop_back();
  CHECK(seen == all);
}

TEST_CASE("what may not be left out is refused, with what may") {
  const auto refusal = [](const char* name) {
    return error_of([&] { make_program(net(kResidual), {.without = {name}}); });
  };
  CHECK(refusal("fuse_relu") == "");
  const std::string list =
      "; those that may be left out are fuse_logarithms, fuse_norms, fuse_batch_norm, fuse_relu, fuse_samples, "
      "fuse_shuffles, "
      "fuse_attention, merge_pixels_late, fuse_concats, simplify_moves, fuse_transposes, fuse_rearrangements, "
      "fuse_biases, "
      "fuse_gradient_sums, "
      "fuse_weight_gradients, keep_maxima, fuse_moves, fuse_statistics, "
      "fuse_batch_norm_pairs, fuse_residuals, open_batch_norms, split_whole_sums, read_kept_signs, compute_parts, "
      "fuse_regions, fuse_region_moves, advance_weights, delay_gradients";
  CHECK(refusal("freeze") == "the pass 'freeze' is needed" + list);
  CHECK(refusal("fuse_rule") == "there is no pass 'fuse_rule'" + list + "; did you mean 'fuse_relu'?");
  CHECK(refusal("") == "there is no pass ''" + list);
}

TEST_CASE("a pass that leaves a graph unsound is named, with the fault") {
  CHECK(fault_after([](const Passage&, Loop&) {}) == "");
  const auto check = [](void (*run)(const Passage&, Loop&), const std::string& fault) {
    const std::string text = fault_after(run);
    INFO(text);
    CHECK(text.starts_with("the pass break left graph 'net' unsound: "));
    CHECK(text.find(fault) != std::string::npos);
  };
  check([](const Passage&, Loop& loop) { loop.graph.values[loop.graph.nodes[3].outputs[0]].type.shape[0] = 7; },
        "; the operator infers ");
  check([](const Passage&, Loop& loop) { std::swap(loop.graph.nodes[1], loop.graph.nodes[2]); }, "has the producer '");
  check(
      [](const Passage&, Loop& loop) {
        Table<NodeId, int64_t> key(loop.graph.nodes.size());
        for (const NodeId n : key.ids()) key[n] = -int64_t(n) + int64_t(key.size());
        reorder_nodes(loop.graph, key);
      },
      "is used before it is computed");
  check([](const Passage&, Loop& loop) { loop.graph.nodes[0].inputs[0] = loop.graph.values.end_id(); },
        "an operand is no value of the graph");
  check([](const Passage&, Loop& loop) { loop.graph.nodes[1].name = loop.graph.nodes[0].name; },
        "another node has the same name");
  check(
      [](const Passage&, Loop& loop) {
        Table<NodeId, int64_t> key(loop.graph.nodes.size(), 1);
        key[0] = -1;
        reorder_nodes(loop.graph, key);
      },
      "is made by no node");
  check(
      [](const Passage&, Loop& loop) {
        const View& other = value(loop.graph, "b.conv.weight").view;
        loop.graph.values[loop.graph.find_value("a.conv.weight")].view.offset_bytes = other.offset_bytes + 4;
      },
      "within the part before it");
  check([](const Passage&,
           Loop& loop) { loop.graph.values[loop.graph.find_value("a.conv.weight")].view.offset_bytes = 1 << 30; },
        "takes bytes ");
  check([](const Passage&, Loop& loop) { loop.graph.values[loop.graph.carries[0].current].type.shape = {1}; },
        "is what the next iteration reads as");
}

TEST_CASE("nets train alike without each optional pass, which changes some of them") {
  std::set<std::string> unseen;
  for (const std::string& name : pass_names(true)) unseen.insert(name);
  for (const std::string& body : nets()) {
    INFO(body);
    ProgramOptions options{.fused_kernels = true, .generated_kernels = true, .aside = true, .alone = true};
    const Program whole = make_program(net(body), options);
    const Trained expected = train(whole, 3);
    std::vector<std::set<std::string>> sets;
    for (const std::string& name : pass_names(true)) sets.push_back({name});
    const std::vector<std::string> all = pass_names(true);
    sets.emplace_back(all.begin(), all.end());
    for (const std::set<std::string>& without : sets) {
      INFO(fmt::format("without {}", fmt::join(without, ", ")));
      options.without = without;
      const Program program = make_program(net(body), options);
      if (text_of(program.training().graph) == text_of(whole.training().graph)) continue;
      if (without.size() == 1) unseen.erase(*without.begin());
      check_same(expected, train(program, 3));
    }
  }
  // Gradients that are large enough are those of tests/executor/plan/update_parts_test.cpp.
  CHECK(unseen == std::set<std::string>{"delay_gradients"});
}

}  // namespace pipeline_test
