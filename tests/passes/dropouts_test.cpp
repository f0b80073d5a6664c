// SPDX-License-Identifier: Apache-2.0

// Dropouts that exporters spell out are found, and validation leaves them out. What is no dropout computes what the
// file says.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "graph/op.h"
#include "graph/samples/exported_batch.h"
#include "ops/nn/random.h"
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

// A graph of x, of this type, and of numbers, whose nodes are `body`. `batch`: that its model was exported for; 0:
// open.
Graph graph_of(const std::string& body, const std::string& type, int64_t batch) {
  Graph graph = read_graph_text(fmt::format("g ({} x) => () {{\n"
                                            "half = Constant <value_float = 0.5> ()\n"
                                            "two = Constant <value_float = 2.0> ()\n"
                                            "one = Constant <value_float = 1.0> ()\n{}}}",
                                            type, body),
                                "g.onnxtxt", builtin_ops());
  verify(graph);
  for (Node& node : graph.nodes) {
    if (batch > 0) node.where.file = exported_file("m.onnx", batch);
  }
  expand_layers(graph);
  return graph;
}

using Numbers = std::vector<double>;

// The values of these names, given that x is 0.1, 0.2, ….
std::vector<Numbers> results(Graph graph, const std::vector<std::string>& names) {
  fold_constants(graph);
  check_sound(graph);
  Loop loop;
  loop.graph = std::move(graph);
  const auto cpu = make_cpu_device();
  LoopRun run(loop, *cpu, DataType::Float32);
  const ValueId x = run.graph().find_value("x");
  Numbers elements;
  for (int64_t i = 0; i < run.type(x).elements(); ++i) elements.push_back(0.1 * double(i + 1));
  run.set(x, elements);
  run.run({.seed = 3, .epoch = 1, .position = 8});
  std::vector<Numbers> all;
  for (const std::string& name : names) all.push_back(run.get(run.graph().find_value(name)));
  return all;
}

const std::vector<std::string> kDropping = {"Dropout", "arbalest.StochasticDepth"};

// The pass leaves the numbers of the values as they are without it, with no dropout.
void check_left(const std::string& body, const std::vector<std::string>& names) {
  INFO(body);
  Graph graph = graph_of(body, "float[4, 6]", 0);
  const std::vector<Numbers> stated = results(graph, names);
  find_dropouts(graph);
  CHECK(count_all(graph, kDropping) == 0);
  CHECK(results(graph, names) == stated);
}

// Half of x's elements, in the shape of `like`: m is 0 or 1, and s is 0 or 2.
std::string mask(const std::string& like) {
  return fmt::format("r = RandomUniformLike ({})\nl = Less (r, half)\nm = Cast <to = 1> (l)\ns = Div (m, half)\n",
                     like);
}

}  // namespace

TEST_CASE("tensors that are dropped from by one mask lose the same elements") {
  Graph graph = graph_of(mask("x") + "a = Mul (x, s)\ng = Sigmoid (x)\nb = Mul (g, s)\n", "float[4, 6]", 0);
  find_dropouts(graph);
  CHECK(count_ops(graph, "Dropout") == 1);
  const std::vector<Numbers> numbers = results(graph, {"x", "a", "g", "b"});
  int64_t dropped = 0;
  for (size_t i = 0; i < numbers[0].size(); ++i) {
    const bool drops = numbers[1][i] == 0;
    dropped += drops;
    CHECK(numbers[1][i] == doctest::Approx(drops ? 0 : 2 * numbers[0][i]));
    CHECK(numbers[3][i] == doctest::Approx(drops ? 0 : 2 * numbers[2][i]));
  }
  CHECK(dropped > 0);
  CHECK(dropped < 24);
}

TEST_CASE("a mask that more than dropouts read is drawn as the file says") {
  check_left(mask("x") + "a = Mul (x, s)\ne = Sub (a, x)\nq = Mul (e, e)\nn = Sub (one, m)\nk = Mul (q, n)\n",
             {"a", "k"});
  check_left(mask("x") + "a = Mul (x, s)\nb = Sin (m)\n", {"a", "b"});
  check_left(mask("x") +
                 "a = Mul (x, s)\nh = GreaterOrEqual (r, half)\nn = Cast <to = 1> (h)\nt = Div (n, half)\n"
                 "b = Mul (x, t)\n",
             {"a", "b"});
}

TEST_CASE("what is computed of the numbers that are drawn is not dropped from") {
  check_left(mask("x") + "y = Mul (r, s)\n", {"y"});
  check_left(mask("x") + "w = Sin (r)\ny = Mul (w, s)\n", {"y"});
}

TEST_CASE("a scale before a transposition counts once for all that is computed of the dropout") {
  Graph graph = graph_of(
      "h = Mul (x, two)\nt = Transpose (h)\nc = Transpose (x)\nr = RandomUniformLike (c)\nl = Less (r, half)\nm = Cast "
      "<to = 1> (l)\n"
      "y = Mul (t, m)\nz = Mul (two, y)\n",
      "float[4, 6]", 0);
  find_dropouts(graph);
  CHECK(count_ops(graph, "Dropout") == 1);
  const std::vector<Numbers> numbers = results(graph, {"c", "y", "z"});
  for (size_t i = 0; i < numbers[0].size(); ++i) {
    CHECK(numbers[1][i] == doctest::Approx(numbers[1][i] == 0 ? 0 : 2 * numbers[0][i]));
    CHECK(numbers[2][i] == doctest::Approx(2 * numbers[1][i]));
  }
}

TEST_CASE("a mask for the one sample of a file is one for each sample, wherever those lie") {
  const std::string steps =
      "zeros = ConstantOfShape (extents)\n" + mask("zeros") + "t = Transpose <perm = [1, 0, 2]> (x)\ny = Mul (t, s)\n";
  Graph graph = graph_of("extents = Constant <value_ints = [1, 1, 6]> ()\n" + steps, "float[8, 3, 6]", 1);
  find_dropouts(graph);
  CHECK(value(graph, only(graph, "Dropout").name).type.shape == Shape{1, 8, 6});
  const Numbers y = results(graph, {"y"})[0];
  Numbers samples;
  for (size_t i = 0; i < 48; ++i) {
    for (const size_t step : {1, 2}) CHECK((y[i] == 0) == (y[48 * step + i] == 0));
    samples.push_back(y[i] == 0);
  }
  CHECK(Numbers(samples.begin(), samples.begin() + 6) != Numbers(samples.begin() + 6, samples.begin() + 12));

  // weights of as many rows as there are samples
  graph = graph_of(
      "w = Constant <value_floats = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]> ()\n"
      "rows = Constant <value_ints = [2, 6]> ()\nv = Reshape (w, rows)\n"
      "extents = Constant <value_ints = [1, 6]> ()\nzeros = ConstantOfShape (extents)\n" +
          mask("zeros") + "y = Mul (v, s)\nz = Add (x, y)\n",
      "float[2, 6]", 1);
  find_dropouts(graph);
  CHECK(value(graph, only(graph, "Dropout").name).type.shape == Shape{1, 6});
}

TEST_CASE("integers are computed as the file says, and so are probabilities that Dropout does not have") {
  check_left(
      "three = Constant <value_int = 3> ()\nfour = Constant <value_int = 4> ()\n"
      "f = Constant <value_float = 1.5> ()\n" +
          mask("x") +
          "i = Cast <to = 7> (l)\nj = Mul (i, four)\nk = Div (j, three)\nc = Cast <to = 1> (k)\ne = Mul (c, f)\n"
          "y = Mul (e, x)\n",
      {"y"});
  check_left("double = Constant <value_int = 2> ()\n" + mask("x") +
                 "i = Cast <to = 7> (x)\nj = Mul (i, double)\nk = Cast <to = 7> (l)\ny = Mul (j, k)\n",
             {"y"});
  check_left(
      "few = Constant <value_float = 1e-20> ()\nr = RandomUniformLike (x)\nl = Less (r, few)\n"
      "m = Cast <to = 1> (l)\ns = Div (m, few)\ny = Mul (x, s)\n",
      {"y"});
}

TEST_CASE("uniform numbers are below high where the largest would be rounded to it") {
  const Graph graph = graph_of("r = RandomUniformLike <low = 1, high = 2> (x)\n", "float[4, 6]", 0);
  const RandomNumbers numbers(only(graph, "RandomUniformLike"), "r", 24);
  Random4 largest;
  for (uint32_t& word : largest.word) word = ~uint32_t{0};
  CHECK(numbers.number(largest, 0) < 2);
  CHECK(numbers.number(largest, 0) == doctest::Approx(2));
}

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

  // tf2onnx writes a choice between x and zeros as a sum of both.
  program =
      program_of_net(net_of("f = Div (x, p)\nt = Transpose <perm = [0, 2, 3, 1]> (f)\nr = RandomUniformLike (samples)\n"
                            "g = GreaterOrEqual (r, q)\nno = Not (g)\nn0 = Cast <to = 1> (no)\nz = Mul (zero, n0)\n"
                            "m = Cast <to = 1> (g)\na = Mul (m, t)\nd = Add (a, z)\n"));
  CHECK(only(program.training().graph, "arbalest.StochasticDepth").name == "a");
  CHECK(count_all(program.training().graph, kSpellings) == 0);
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
  std::vector<double> numbers[2], last[2];
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
      CHECK(drawn != last[normal]);
      last[normal] = drawn;
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
