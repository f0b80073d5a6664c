// SPDX-License-Identifier: Apache-2.0

// Dropouts that exporters spell out are found, and validation leaves them out.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "graph/op.h"
#include "passes/recompute.h"
#include "tests/passes/loop_run.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace dropouts_test {
namespace {

// Numbers, and zeros of which draws take the shape: of samples (N, 1, 1, 1), of channels, and of the whole batch.
const std::string kBefore =
    "p = Constant <value_float = 0.75> ()\n"
    "q = Constant <value_float = 0.25> ()\n"
    "zero = Constant <value_float = 0.0> ()\n"
    "one = Constant <value_int = 1> ()\n"
    "ones = Constant <value_ints = [1, 1, 1]> ()\n"
    "minus = Constant <value_ints = [-1]> ()\n"
    "shape = Shape (x)\n"
    "batch = Shape <start = 0, end = 1> (x)\n"
    "n = Reshape (batch, minus)\n"
    "extents = Concat <axis = 0> (n, ones)\n"
    "samples = ConstantOfShape (extents)\n"
    "pair = Shape <start = 0, end = 2> (x)\n"
    "two = Constant <value_ints = [1, 1]> ()\n"
    "of_channels = Concat <axis = 0> (pair, two)\n"
    "channels = ConstantOfShape (of_channels)\n"
    "four = Constant <value_ints = [1, 1, 1, 1]> ()\n"
    "whole = ConstantOfShape (four)\n";

// A net of `d`, what is made of x.
std::string net_of(const std::string& body) {
  return kBefore + body + "h = Relu (d)\n" + kHead;
}

int64_t count_all(const Graph& graph, const std::vector<std::string>& ops) {
  return std::accumulate(ops.begin(), ops.end(), int64_t{0},
                         [&](int64_t sum, const std::string& op) { return sum + count_ops(graph, op); });
}

const std::vector<std::string> kSpellings = {"RandomUniformLike", "RandomUniform", "Bernoulli", "Less", "Greater",
                                             "GreaterOrEqual",    "Floor",         "Where",     "Not"};

// d is made of x and dropped by `op`, a quarter of the elements, and validation has nothing of it.
void check_found(const std::string& body, const std::string& op) {
  INFO(body);
  const Program program = program_of_net(net_of(body));
  const Graph& training = program.training().graph;
  CHECK(count_all(training, kSpellings) == 0);
  const Node& node = only(training, op);
  CHECK(float_attribute(node, "ratio") == doctest::Approx(0.25).epsilon(1e-6));
  CHECK(node.inputs[0] == training.find_value("x"));
  const Graph& validation = program.find(LoopRole::Validate)->graph;
  CHECK(count_all(validation, kSpellings) == 0);
  CHECK(count_all(validation, {op, "Mul", "Div", "Expand"}) == 0);
}

}  // namespace

TEST_CASE("dropouts of elements are found, however an exporter writes them") {
  for (const char* body :
       {// PyTorch's torch.rand_like
        "r = RandomUniformLike <dtype = 1> (x)\ng = Greater (r, q)\nm = Cast <to = 1> (g)\na = Mul (x, m)\n"
        "d = Div (a, p)\n",
        "r = RandomUniformLike (x)\nl = Less (r, q)\nzeros = Expand (zero, shape)\nb = Div (x, p)\n"
        "d = Where (l, zeros, b)\n",
        "filled = Expand (p, shape)\nm = Bernoulli (filled)\ns = Div (m, p)\nd = Mul (s, x)\n",
        // of TensorFlow
        "f = Div (x, p)\nr = RandomUniformLike (x)\ng = GreaterOrEqual (r, q)\nno = Not (g)\nc = Cast <to = 1> (no)\n"
        "e = Mul (zero, c)\nm = Cast <to = 1> (g)\na = Mul (m, f)\nd = Add (a, e)\n",
        // the mask in another shape, and turned around
        "flat = Flatten (x)\nr = RandomUniformLike (flat)\ng = Less (q, r)\nm = Cast <to = 6> (g)\n"
        "k = Reshape (m, shape)\nf = CastLike (k, x)\ns = Div (f, p)\nd = Mul (x, s)\n",
        "r = RandomUniformLike <low = -1, high = 3> (x)\ng = Greater (r, zero)\nm = Cast <to = 1> (g)\n"
        "s = Div (m, p)\nd = Mul (x, s)\n"}) {
    check_found(body, "Dropout");
  }
}

TEST_CASE("dropouts of samples are stochastic depth") {
  for (const char* body :
       {"r = RandomUniformLike <dtype = 1, high = 1, low = 0> (samples)\nl = Less (r, p)\nm = Cast <to = 1> (l)\n"
        "s = Div (m, p)\nd = Mul (x, s)\n",
        // timm before it took bernoulli_()
        "r = RandomUniformLike (samples)\nu = Add (p, r)\nf = Floor (u)\na = Div (x, p)\nd = Mul (a, f)\n",
        // PyTorch's newer exporter
        "e = Expand (zero, extents)\nf = Cast <to = 1> (e)\nr = RandomUniformLike (f)\nc = CastLike (p, r)\n"
        "l = Less (r, c)\nb = CastLike (l, e)\ns = Div (b, p)\nd = Mul (x, s)\n",
        "z = ConstantOfShape (n)\nr = RandomUniformLike (z)\nv = Reshape (r, extents)\nl = Less (v, p)\n"
        "m = Cast <to = 1> (l)\ns = Div (m, p)\nd = Mul (x, s)\n"}) {
    check_found(body, "arbalest.StochasticDepth");
  }
}

TEST_CASE("what channels or the whole batch share is a tensor of its own, which validation multiplies by ones") {
  for (const std::string like : {"channels", "whole"}) {
    INFO(like);
    const Program program = program_of_net(net_of(fmt::format(
        "r = RandomUniformLike ({})\nl = Less (r, p)\nm = Cast <to = 1> (l)\ns = Div (m, p)\nd = Mul (x, s)\n", like)));
    const Graph& training = program.training().graph;
    CHECK(count_all(training, kSpellings) == 0);
    const Node& node = only(training, "Dropout");
    CHECK(training.values[node.outputs[0]].type.shape == (like == "whole" ? Shape{1, 1, 1, 1} : Shape{4, 2, 1, 1}));
    const Graph& validation = program.find(LoopRole::Validate)->graph;
    CHECK(count_all(validation, kSpellings) + count_ops(validation, "Dropout") == 0);
  }
}

TEST_CASE("dropouts behind each other are found, and one whose scale comes before a transposition") {
  Program program = program_of_net(
      net_of("r = RandomUniformLike (x)\nl = Less (r, p)\nm = Cast <to = 1> (l)\ns = Div (m, p)\na = Mul (x, s)\n"
             "t = RandomUniformLike (samples)\nk = Less (t, p)\nw = Cast <to = 1> (k)\ny = Div (w, p)\nb = Mul (a, y)\n"
             "d = Add (b, x)\n"));
  CHECK(count_ops(program.training().graph, "Dropout") == 1);
  CHECK(count_ops(program.training().graph, "arbalest.StochasticDepth") == 1);
  CHECK(count_all(program.training().graph, kSpellings) == 0);

  program =
      program_of_net(net_of("f = Div (x, p)\nt = Transpose <perm = [0, 2, 3, 1]> (f)\nv = Transpose <perm = [0, 2, 3, "
                            "1]> (x)\nr = RandomUniformLike (v)\ng = GreaterOrEqual (r, q)\n"
                            "m = Cast <to = 1> (g)\nd = Mul (t, m)\n"));
  CHECK(only(program.training().graph, "Dropout").name == "d");
  CHECK(count_ops(program.training().graph, "Div") == 0);
}

TEST_CASE("other random numbers stay what they are, in validation as well") {
  for (const char* body :
       {"r = RandomUniformLike (x)\nl = Less (r, p)\nm = Cast <to = 1> (l)\nd = Mul (x, m)\n",  // of another mean
        "r = RandomUniformLike (x)\nl = Less (r, p)\nm = Cast <to = 1> (l)\ns = Div (m, p)\nk = Add (s, q)\nd = Mul "
        "(x, k)\n",
        "r = RandomUniformLike (x)\nd = Mul (x, r)\n",
        "r = RandomUniformLike (x)\nl = Less (r, p)\nm = Cast <to = 1> (l)\nt = RandomUniformLike (x)\nk = Less (t, "
        "p)\n"
        "w = Cast <to = 1> (k)\nb = Mul (m, w)\ns = Div (b, p)\nd = Mul (x, s)\n",
        "r = RandomNormalLike (x)\nd = Add (x, r)\n", "r = RandomUniform <shape = [6, 6]> ()\nd = Add (x, r)\n",
        "r = RandomNormal <shape = [6, 6], mean = 1, scale = 0.5> ()\nd = Mul (x, r)\n"}) {
    INFO(std::string(body));
    const Program program = program_of_net(net_of(body));
    for (const Graph* graph : {&program.training().graph, &program.find(LoopRole::Validate)->graph}) {
      CHECK(count_all(*graph, {"Dropout", "arbalest.StochasticDepth"}) == 0);
      CHECK(count_all(*graph, {"RandomUniformLike", "RandomNormalLike"}) > 0);
    }
  }
}

TEST_CASE("random numbers are those of ONNX, other ones in each batch, and the same when they are drawn again") {
  Program program = program_of_net(
      "c = arbalest.Conv <filters = 2, kernel_shape = [1, 1]> (x)\n"
      "r = RandomUniformLike <low = -1, high = 3> (c)\na = Mul (c, r)\n"
      "t = RandomNormalLike <mean = 2, scale = 0.5> (c)\nb = Mul (a, t)\n"
      "share = RandomUniformLike <high = 0.5> (c)\nk = Bernoulli (share)\nh = Mul (b, k)\n" +
      kHead);
  Loop& loop = program.training();
  Table<NodeId, bool> chosen(loop.graph.nodes.size(), false);
  for (const char* name : {"r", "t"}) chosen[value(loop.graph, name).producer] = true;
  recompute(loop.graph, chosen);
  check_sound(loop.graph);
  CHECK(count_ops(loop.graph, "arbalest.RandomUniformLikeAgain") == 1);
  CHECK(count_ops(loop.graph, "arbalest.RandomNormalLikeAgain") == 1);
  const auto cpu = make_cpu_device();
  LoopRun run(loop, *cpu, DataType::Float32);
  std::vector<double> numbers[2], last;
  int64_t ones = 0;
  for (uint64_t batch = 0; batch < 100; ++batch) {
    run.run({.seed = 3, .epoch = 1, .position = 4 * batch});
    const std::vector<double> kept = run.get(loop.graph.find_value("k"));
    ones += std::count(kept.begin(), kept.end(), 1);
    CHECK(std::count(kept.begin(), kept.end(), 0) + std::count(kept.begin(), kept.end(), 1) == int64_t(kept.size()));
    for (const bool normal : {false, true}) {
      const std::string name = normal ? "t" : "r";
      const std::vector<double> drawn = run.get(loop.graph.find_value(name));
      CHECK(drawn == run.get(loop.graph.find_value(name + " again")));
      CHECK(drawn != last);
      last = drawn;
      numbers[normal].insert(numbers[normal].end(), drawn.begin(), drawn.end());
    }
  }
  const auto moment = [](const std::vector<double>& all, double mean) {
    double sum = 0;
    for (const double each : all) sum += (each - mean) * (mean == 0 ? 1 : each - mean);
    return sum / double(all.size());
  };
  CHECK(moment(numbers[0], 0) == doctest::Approx(1).epsilon(0.03));
  CHECK(moment(numbers[0], 1) == doctest::Approx(16.0 / 12).epsilon(0.03));
  CHECK(moment(numbers[1], 0) == doctest::Approx(2).epsilon(0.01));
  CHECK(moment(numbers[1], 2) == doctest::Approx(0.25).epsilon(0.03));
  CHECK(double(ones) / double(numbers[0].size()) == doctest::Approx(0.25).epsilon(0.03));
  const auto [least, most] = std::minmax_element(numbers[0].begin(), numbers[0].end());
  CHECK(*least >= -1);
  CHECK(*most < 3);
  // Nothing that lies behind another number tells it: neighbours are not correlated.
  double products = 0;
  for (size_t i = 0; i + 1 < numbers[1].size(); ++i) products += (numbers[1][i] - 2) * (numbers[1][i + 1] - 2);
  CHECK(std::abs(products / double(numbers[1].size())) < 0.01);
}

}  // namespace dropouts_test
