// SPDX-License-Identifier: Apache-2.0

// Regions of elementwise operators: which are made, and that programs with them compute the same.

#include <doctest/doctest.h>

#include "ops/regions/region.h"
#include "tests/passes/in_double.h"
#include "tests/passes/passes_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace regions_test {
namespace {

Program made(const std::string& body, bool regions, bool bf16 = false) {
  ProgramOptions options{.bf16 = bf16, .generated_kernels = regions, .aside = true};
  Program program = make_program(net(body), options);
  for (const Loop& loop : program.loops) check_sound(loop.graph);
  return program;
}

// The loss and all gradients of one step, with regions and without.
void check_same(const std::string& body) {
  INFO(body);
  const Program plain = made(body, false), fused = made(body, true);
  InDouble expected(plain.training()), found(fused.training());
  CHECK(found.loss() == doctest::Approx(expected.loss()).epsilon(1e-12));
  for (const Value& value : plain.training().graph.values) {
    if (value.role != Role::Parameter || value.view.base == kNone) continue;
    INFO(value.name);
    const double *a = expected.of(value.name + ".gradient"), *b = found.of(value.name + ".gradient");
    double difference = 0, norm = 1e-12;
    for (int64_t i = 0; i < value.type.elements(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += a[i] * a[i];
    }
    CHECK(std::sqrt(difference / norm) < 1e-10);
  }
}

// The operators of a region's steps.
std::vector<std::string> steps_of(const Node& region) {
  std::vector<std::string> names;
  for (const RegionStep& step : region_program(region, builtin_ops()).steps) names.push_back(step.op->qualified_name());
  return names;
}

const std::string kGelu =
    "flat = Flatten (x)\n"
    "u = MatMul (flat, w)\nb = Add (u, bias)\nd = Div (b, root)\ne = Erf (d)\ni = Add (e, one)\nm = Mul (b, i)\n"
    "g = Mul (m, half)\n"
    "logits = MatMul (g, v)\n" +
    std::string(kLoss) + "#initial float[72, 8] w = {" + numbers(72 * 8) + "}, float[8] bias = {" + numbers(8) +
    "}, float[8, 3] v = {" + numbers(24) + "}, float root = {1.4142135}, float one = {1}, float half = {0.5}";

// Two convolutions whose batch norms are followed by x · sigmoid(x), the second after a sum with what came before.
const std::string kSwish =
    "a = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], relu = 0> (x)\n"
    "sa = Sigmoid (a)\nha = Mul (a, sa)\n"
    "b = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], relu = 0> (ha)\n"
    "c = Add (b, ha)\n"
    "sc = Sigmoid (c)\nh = Mul (c, sc)\n" +
    std::string(kHead);

}  // namespace

TEST_CASE("regions: batch norms join the activations around them, forward and backward") {
  const Program program = made(kSwish, true, true);
  const Graph& graph = program.training().graph;
  for (const char* op :
       {"arbalest.BatchNormTraining", "arbalest.BatchNormGrad", "Sigmoid", "Sub", "arbalest.SigmoidGrad"}) {
    INFO(std::string(op));
    CHECK(count_ops(graph, op) == 0);
  }
  CHECK(count_ops(graph, "arbalest.ChannelSum") == 1);  // of the last bias: what it sums is made by no region
  CHECK(count_ops(graph, "arbalest.BatchNormStatistics") == 2);
  // Forward one each. Backward one each for sums, and one for the gradient made of these.
  CHECK(count_ops(graph, "arbalest.Region") == 6);
  for (const Node& node : graph.nodes) {
    if (node.op->name != "Region") continue;
    for (const ValueId output : node.outputs) {
      const TensorType& type = graph.values[output].type;
      INFO(graph.values[output].name);
      CHECK((type.shape.size() == 1 || type.dtype == DataType::Bfloat16));  // nothing is stored in float but sums
    }
  }
  check_same(kSwish);
}

TEST_CASE("regions: a bias's gradient is summed where what it sums is made, unless it is small") {
  const auto body_of = [](int units) {
    return fmt::format("flat = Flatten (x)\nu = arbalest.Linear <units = {}> (flat)\ne = Sigmoid (u)\nh = Mul (u, e)\n",
                       units) +
           kHead;
  };
  const auto sums = [](const std::string& body) {
    return count_ops(made(body, true).training().graph, "arbalest.ChannelSum");
  };
  CHECK(sums(body_of(16384)) == 1);  // of the logits
  CHECK(sums(body_of(8)) == 2);
  check_same(body_of(16384));
}

TEST_CASE(
    "regions: gradients of single numbers that scale and shift a tensor are summed where it is, unless it is small") {
  const auto body_of = [](int filters, const std::string& shape) {
    return fmt::format("c = arbalest.Conv <filters = {}, kernel_shape = [3, 3]> (x)\nr = Relu (c)\n", filters) +
           "q = Mul (r, r)\nf = Mul (q, factor)\nh = Add (f, shift)\n" + kHead + "#initial float" + shape +
           " factor = {0.8}, float" + shape + " shift = {-0.4}";
  };
  const auto count = [](const std::string& body, const char* op) {
    return count_ops(made(body, true).training().graph, op);
  };
  for (const std::string shape : {"[1]", "[1, 1, 1]"}) {
    const std::string large = body_of(1024, shape);
    const Program program = made(large, true);
    int sums = 0;
    for (const Node& node : program.training().graph.nodes) {
      if (node.op->name == "SumTo") CHECK(program.training().graph.values[node.inputs[0]].type.elements() == 1024);
      if (node.op->name == "Region") sums += int(region_program(node, builtin_ops()).sums.size());
    }
    CHECK(sums == 2);
    CHECK(count(large, "arbalest.ChannelSum") == 1);  // of the logits
    const Program small = made(body_of(4, shape), true);
    for (const Node& node : small.training().graph.nodes) {
      if (node.op->name == "SumTo") CHECK(small.training().graph.values[node.inputs[0]].type.shape.size() == 4);
    }
    check_same(large);
  }
  const std::string rows =
      "s = Reshape <shape = [-1, 72, 1]> (x)\nu = MatMul (s, w)\nr = Relu (u)\nh = Mul (r, factor)\n" +
      std::string(kHead) + "#initial float[1, 128] w = {" + numbers(128) + "}, float[1] factor = {0.8}";
  CHECK(count(rows, "arbalest.ChannelSum") == 1);
  check_same(rows);
}

TEST_CASE(
    "regions: squeeze-and-excitation reads what it scales once for its means, and stores neither it nor products") {
  for (const std::string mean : {"GlobalAveragePool (ha)", "ReduceMean <axes = [2, 3]> (ha)"}) {
    const std::string body =
        "a = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], relu = 0> (x)\n"
        "sa = Sigmoid (a)\nha = Mul (a, sa)\nm = " +
        mean +
        "\ne = arbalest.Conv <filters = 4, kernel_shape = [1, 1]> (m)\ns = Sigmoid (e)\nt = Mul (ha, s)\n"
        "h = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3]> (t)\n" +
        kHead;
    const Program program = made(body, true, true);
    const Graph& graph = program.training().graph;
    INFO(body);
    for (const char* op : {"GlobalAveragePool", "ReduceMean", "arbalest.ReduceMeanGrad", "arbalest.SumTo", "Mul",
                           "arbalest.MulGradA", "arbalest.MulGradB"}) {
      INFO(std::string(op));
      CHECK(count_ops(graph, op) == 0);
    }
    CHECK(graph.find_value("ha") == kNone);
    // Regions of the gradient read what came from the next layer again, rather than a sum of it in float.
    for (const Node& node : graph.nodes) {
      if (node.op->name != "Region") continue;
      const int64_t elements = element_count(ints_attribute(node, "shape"));
      for (const ValueId output : node.outputs) {
        const TensorType& type = graph.values[output].type;
        CHECK((type.elements() < elements || type.dtype == DataType::Bfloat16));
      }
    }
    check_same(body);
  }
}

TEST_CASE("regions: sums of each sample keep the shape that is asked for") {
  const std::string body =
      "a = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\nb = Sigmoid (a)\n"
      "m = ReduceSum <axes = [2, 3], keepdims = 0> (b)\nc = Mul (b, b)\nq = ReduceMean <axes = [2, 3]> (c)\n"
      "f = Flatten (q)\nlogits0 = Add (m, f)\nlogits = Gemm (logits0, w)\n" +
      std::string(kLoss) + "#initial float[4, 3] w = {" + numbers(12) + "}";
  const Program program = made(body, true);
  const Graph& graph = program.training().graph;
  for (const char* op : {"ReduceSum", "ReduceMean", "arbalest.ReduceSumGrad"}) CHECK(count_ops(graph, op) == 0);
  check_same(body);
}

TEST_CASE("regions: GELU of parts is a region forward and one backward, which computes its operands again") {
  const Program program = made(kGelu, true);
  const Graph& graph = program.training().graph;
  for (const char* op : {"Erf", "Div", "arbalest.ErfGrad", "arbalest.DivGradA"}) CHECK(count_ops(graph, op) == 0);
  REQUIRE(count_ops(graph, "arbalest.Region") == 2);
  std::vector<const Node*> regions;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "Region") regions.push_back(&node);
  }
  // Forward, only what the product reads is stored. The backward pass reads the product before it.
  CHECK(steps_of(*regions[0]) == std::vector<std::string>{"Div", "Erf", "Add", "Mul", "Mul"});
  CHECK(regions[0]->outputs.size() == 1);
  CHECK(regions[1]->stage == Stage::Backward);
  const std::vector<ValueId>& read = regions[1]->inputs;
  CHECK(std::count(read.begin(), read.end(), graph.find_value("b")) == 1);
  for (const char* name : {"u", "d", "e", "i", "m"}) CHECK(graph.find_value(name) == kNone);
  check_same(kGelu);
}

TEST_CASE("regions: what a view shows is read again as it is") {
  std::string body = kGelu;
  body.replace(body.find("flat = Flatten (x)"), 18, "flat = Reshape <shape = [0, 9, 8]> (x)");
  body.replace(body.find("logits"), 0, "h = Flatten (g)\n");
  body.replace(body.find("(g, v)"), 6, "(h, v)");
  body.replace(body.find("float[72, 8] w"), 14, "float[8, 8] w");
  body.replace(body.find(numbers(72 * 8)), numbers(72 * 8).size(), numbers(64));
  body.replace(body.find("float[8, 3] v"), 13, "float[72, 3] v");
  body.replace(body.rfind(numbers(24)), numbers(24).size(), numbers(72 * 3));
  const Program program = made(body, true);
  const Graph& graph = program.training().graph;
  // A product takes the bias, and its rows are shown as three axes, which both regions read.
  REQUIRE(count_ops(graph, "arbalest.Region") == 2);
  for (const char* name : {"u", "d", "e", "i", "m"}) CHECK(graph.find_value(name) == kNone);
  check_same(body);
}

TEST_CASE("regions: what a product lies between is not joined, but computed again rather than stored") {
  const std::string body =
      "flat = Flatten (x)\na = Sigmoid (flat)\nb = Tanh (a)\np = MatMul (b, w)\nc = Mul (p, a)\nd = Exp (c)\n"
      "logits = MatMul (d, v)\n" +
      std::string(kLoss) + "#initial float[72, 72] w = {" + numbers(72 * 72) + "}, float[72, 3] v = {" +
      numbers(72 * 3) + "}";
  const Program program = made(body, true);
  std::vector<std::vector<std::string>> steps;
  for (const Node& node : program.training().graph.nodes) {
    if (node.op->name == "Region" && node.stage == Stage::Forward) steps.push_back(steps_of(node));
  }
  CHECK(steps == std::vector<std::vector<std::string>>{{"Sigmoid", "Tanh"}, {"Sigmoid", "Mul", "Exp"}});
  CHECK(program.training().graph.find_value("a") == kNone);
  check_same(body);
}

TEST_CASE("regions: what forward stores for another operator is computed again in backward, from what it has") {
  const auto body = [](const char* function) {
    return fmt::format("flat = Flatten (x)\nu = MatMul (flat, w)\ng = {} (u)\n", function) +
           "all = ReduceL2 <axes = [1], keepdims = 1> (g)\nscaled = Mul (g, all)\nlogits = MatMul (scaled, v)\n" +
           std::string(kLoss) + "#initial float[72, 8] w = {" + numbers(72 * 8) + "}, float[8, 3] v = {" + numbers(24) +
           "}";
  };
  const auto read_in_backward = [](const Program& program, std::string_view name) {
    const Graph& graph = program.training().graph;
    REQUIRE(graph.find_value(name) != kNone);
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      return node.stage == Stage::Backward &&
             std::count(node.inputs.begin(), node.inputs.end(), graph.find_value(name)) > 0;
    });
  };
  const Program gelu = made(body("Gelu"), true);
  CHECK(count_ops(gelu.training().graph, "ReduceL2") == 1);
  CHECK_FALSE(read_in_backward(gelu, "g"));
  CHECK(read_in_backward(gelu, "u"));
  // The gradient of Tanh reads its result: to keep the operand instead would save nothing.
  const Program tanh = made(body("Tanh"), true);
  CHECK(read_in_backward(tanh, "g"));
  CHECK_FALSE(read_in_backward(tanh, "u"));
  check_same(body("Gelu"));
  check_same(body("Tanh"));
}

TEST_CASE("regions: what one region makes for a copy, another one may read through views") {
  check_same(
      "flat = Flatten (x)\ne = Gemm (flat, w)\ne1 = Reshape <shape = [0, 1, 8]> (e)\nu1 = Add (e1, b1)\n"
      "u2 = Add (u1, b2)\nv = Reshape <shape = [0, 8]> (u2)\nfar = Constant <value_float = 3.0> ()\nv1 = Add (v, far)\n"
      "k = Reshape <shape = [0, 1, 8]> (v1)\np = Reshape <shape = [0, 12, 6]> (x)\nq = MatMul (p, m)\ns = Add (q, k)\n"
      "t = Sigmoid (s)\ng = Mul (t, s)\nh = ReduceMean <axes = [1], keepdims = 0> (g)\n" +
      kHead + "#initial float[72, 8] w = {" + numbers(72 * 8) + "}, float[8] b1 = {" + numbers(8) +
      "}, float[8] b2 = {" + numbers(8) + "}, float[6, 8] m = {" + numbers(48) + "}");
}

TEST_CASE("regions: the gradient of a maximum reads what it compares as that was stored") {
  const std::string body =
      "c = arbalest.Conv <filters = 6, kernel_shape = [3, 3]> (x)\n"
      "i = InstanceNormalization (c, w, b)\nr = Relu (i)\nh = ReduceMax <axes = [2, 3], keepdims = 0> (r)\n" +
      kHead + "#initial float[6] w = {" + numbers(6) + "}, float[6] b = {" + numbers(6) + "}";
  check_same(body);
  size_t found = 0;
  const Program program = made(body, true, true);
  for (const Node& node : program.training().graph.nodes) {
    if (!node.is("arbalest.Region")) continue;
    const RegionProgram region = region_program(node, builtin_ops());
    for (const RegionStep& step : region.steps) {
      if (step.op->name != "ReduceMaxGrad") continue;
      ++found;
      CHECK(step.operands[1] < region.inputs);
      CHECK(step.operands[2] < region.inputs);
    }
  }
  CHECK(found == 2);  // with sums, and for what is normalised
}

TEST_CASE("regions: other shapes, other stages and operators that are read alone stay as they are") {
  const Program program = made("flat = Flatten (x)\nh = Sigmoid (flat)\n" + kHead, true);
  const Graph& graph = program.training().graph;
  CHECK(count_ops(graph, "arbalest.Region") == 0);
  CHECK(count_ops(graph, "Sigmoid") == 1);
}

TEST_CASE("regions: casts of lowered precision are taken in") {
  const Program program = made(kGelu, true, true);
  const Graph& graph = program.training().graph;
  for (const Node& node : graph.nodes) {
    if (node.op->name != "Region") continue;
    for (const ValueId output : node.outputs) {
      const TensorType& type = graph.values[output].type;
      CHECK((type.dtype == DataType::Bfloat16 || type.shape == Shape{8}));  // a bias's gradient is a sum in float
    }
  }
}

TEST_CASE("regions: what is computed again beside a gradient that was written over another one comes after it") {
  const auto conv = [](const char* result, const char* x, int filters) {
    return fmt::format("{} = arbalest.Conv <filters = {}, kernel_shape = [3, 3], bias = 0> ({})\n", result, filters, x);
  };
  // Three batch norms read `a`, and their gradients add to its gradient in place.
  const std::string body =
      conv("u", "x", 4) + "e = Erf (u)\na = Mul (u, e)\n" + "n1 = arbalest.BatchNorm (a)\nr1 = Relu (n1)\n" +
      conv("b", "r1", 3) + "ab = Concat <axis = 1> (a, b)\nn2 = arbalest.BatchNorm (ab)\nr2 = Relu (n2)\n" +
      conv("c", "r2", 2) + "abc = Concat <axis = 1> (ab, c)\nn3 = arbalest.BatchNorm (abc)\nh = Relu (n3)\n" + kHead;
  const Program program = made(body, true);
  const Graph& graph = program.training().graph;
  CHECK(graph.find_value("e") == kNone);
  const auto in_place = [&](ValueId value) {
    const NodeId producer = graph.values[value].producer;
    return producer != kNone && !graph.nodes[producer].op->aliases.empty();
  };
  const bool met = std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op->name == "Region" && node.stage == Stage::Backward &&
           std::any_of(node.inputs.begin(), node.inputs.end(), in_place);
  });
  CHECK(met);
  check_same(body);
}

}  // namespace regions_test
