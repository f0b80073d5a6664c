// SPDX-License-Identifier: Apache-2.0

// Whole training graphs in double: the gradients in their arena against differences of the loss, and the update against
// its formula.

#include <doctest/doctest.h>

#include <cmath>

#include "tests/passes/in_double.h"
#include "tests/passes/net.h"

using namespace arbalest;
using namespace arbalest::test;

namespace gradient_test {
namespace {

// Returns the loss.
double check_gradients(const std::string& body, const std::vector<std::string>& frozen = {},
                       const ProgramOptions& options = {}) {
  Graph graph = net(body);
  graph.nodes[graph.find_node("trained")].attributes.set("frozen", frozen);
  const Program program = make_program(graph, options);
  const Loop& loop = program.training();
  InDouble net(loop);
  const double loss = net.loss();
  constexpr double kStep = 1e-6;
  constexpr int64_t kPerParameter = 6;
  int64_t nonzero = 0;
  for (const ValueId v : net.graph().values.ids()) {
    const Value& value = net.graph().values[v];
    if (value.role != Role::Parameter || value.view.base == kNone) continue;
    const double* gradient = net.of(value.name + ".gradient");
    const int64_t count = value.type.elements();
    net.loss();  // of parameters as they are: the latest run had one that was changed
    std::vector<double> computed(gradient, gradient + count);
    for (int64_t k = 0; k < std::min(count, kPerParameter); ++k) {
      const int64_t i = k * count / std::min(count, kPerParameter);
      double& parameter = net.of(v)[i];
      const double at = parameter;
      parameter = at + kStep;
      const double above = net.loss();
      parameter = at - kStep;
      const double below = net.loss();
      parameter = at;
      const double difference = (above - below) / (2 * kStep);
      INFO(value.name, "[", i, "]: gradient ", computed[size_t(i)], ", difference ", difference);
      CHECK(std::abs(computed[size_t(i)] - difference) < 1e-6 + 1e-5 * std::abs(difference));
      nonzero += std::abs(difference) > 1e-4;
    }
  }
  CHECK(nonzero > 5);
  return loss;
}

const std::string kHead = "logits = arbalest.Linear <units = 3> (h)\n" + std::string(kLoss);

}  // namespace

TEST_CASE("no gradient goes through StopGradient") {
  const auto gradient = [](const char* other) {
    const Program program = make_program(net("c = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\n" +
                                             std::string(other) + "h = Mul (c, s)\n" + kHead),
                                         {});
    CHECK(program.training().graph.find_op("arbalest.StopGradient") == nullptr);
    CHECK(program.find(LoopRole::Validate)->graph.find_op("arbalest.StopGradient") == nullptr);
    InDouble net(program.training());
    net.loss();
    const Value& weight = net.graph().values[net.graph().find_value("c.weight")];
    const double* numbers = net.of("c.weight.gradient");
    return std::vector<double>(numbers, numbers + weight.type.elements());
  };
  const std::vector<double> both = gradient("s = Identity (c)\n");
  std::vector<double> one = gradient("s = arbalest.StopGradient (c)\n");
  double largest = 0;
  for (size_t i = 0; i < both.size(); ++i) {
    CHECK(2 * one[i] == doctest::Approx(both[i]));  // of a square
    largest = std::max(largest, std::abs(both[i]));
  }
  CHECK(largest > 1e-4);
}

TEST_CASE("gradients of a residual block, fused, are the loss's differences") {
  check_gradients(
      "a = arbalest.ConvBnRelu <filters = 3, kernel_shape = [3, 3], strides = [2, 2]> (x)\n"
      "b = arbalest.ConvBnRelu <filters = 3, kernel_shape = [3, 3], relu = 0> (a)\n"
      "s = Add (a, b)\nr = Relu (s)\nh = GlobalAveragePool (r)\n" +
      kHead);
}

TEST_CASE("gradients are the loss's differences where convolutions leave statistics to batch norms, and losses agree") {
  const std::string body =
      "a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)\n"
      "b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (a)\n"
      "c = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], relu = 0> (b)\n"
      "s = Add (a, c)\nr = Relu (s)\n"
      "d = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (r)\n"
      "t = Add (d, r)\nh = GlobalAveragePool (t)\n" +
      kHead;
  ProgramOptions fused;
  fused.fused_kernels = true;
  CHECK(check_gradients(body) == doctest::Approx(check_gradients(body, {}, fused)).epsilon(1e-12));
}

TEST_CASE("gradients are the loss's differences where two batch norms are one node, and losses agree") {
  const std::string projected =
      "a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)\n"
      "b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3], relu = 0> (a)\n"
      "p = arbalest.ConvBnRelu <filters = 16, kernel_shape = [1, 1], relu = 0> (x)\n"
      "s = Add (b, p)\nr = Relu (s)\n";
  ProgramOptions fused;
  fused.fused_kernels = true;
  // The gradient of the sum's Relu: one gradient, two, or the one that a convolution's gradient leaves with sums.
  for (const std::string end : {"h = GlobalAveragePool (r)\n",
                                "m = MaxPool <kernel_shape = [2, 2]> (r)\nd = GlobalAveragePool (m)\n"
                                "e = GlobalAveragePool (r)\nh = Add (d, e)\n",
                                "d = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (r)\nt = Add (d, r)\nh "
                                "= GlobalAveragePool (t)\n"}) {
    INFO(end);
    const std::string body = projected + end + kHead;
    CHECK(check_gradients(body) == doctest::Approx(check_gradients(body, {}, fused)).epsilon(1e-12));
  }
}

TEST_CASE("gradients of convolutions, pools and sums are the loss's differences") {
  check_gradients(
      "a = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (x)\n"
      "p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)\n"
      "n = arbalest.BatchNorm (p)\nr = Relu (n)\nh = Add (r, n)\n" +
      kHead);
}

TEST_CASE("gradients of attention, in parts and as one operator, are the loss's differences, and the losses agree") {
  const std::string tokens = "tokens = Reshape <shape = [0, 9, 8]> (x)\n";
  const std::string apart =
      "q3 = arbalest.Linear <units = 16, axis = -1> (tokens)\nk3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n"
      "v3 = arbalest.Linear <units = 16, axis = -1> (tokens)\n";
  const std::string together =
      "qkv = arbalest.Linear <units = 48, axis = -1> (tokens)\nq3, k3, v3 = Split <axis = 2> (qkv)\n";
  const std::string heads =
      "q4 = Reshape <shape = [0, 0, 2, 8]> (q3)\nq = Transpose <perm = [0, 2, 1, 3]> (q4)\n"
      "k4 = Reshape <shape = [0, 0, 2, 8]> (k3)\nk = Transpose <perm = [0, 2, 3, 1]> (k4)\n"
      "v4 = Reshape <shape = [0, 0, 2, 8]> (v3)\nv = Transpose <perm = [0, 2, 1, 3]> (v4)\n"
      "c = Constant <value_float = 0.35> ()\nqs = Mul (q, c)\ns = MatMul (qs, k)\n";
  const std::string end = "a = MatMul (w, v)\nt = Transpose <perm = [0, 2, 1, 3]> (a)\nh = Flatten (t)\n" + kHead;
  const std::string biases = "#initial float[2, 9, 9] biases = {" + numbers(162) + "}";
  ProgramOptions fused;
  fused.fused_kernels = true;
  for (const std::string& operands : {apart, together}) {
    for (const std::string weights : {"w = Softmax (s)\n", "m = Add (s, biases)\nw = Softmax (m)\n"}) {
      INFO(operands, weights);
      const std::string body =
          tokens + operands + heads + weights + end + (weights.starts_with("m") ? biases : std::string());
      CHECK(check_gradients(body) == doctest::Approx(check_gradients(body, {}, fused)).epsilon(1e-12));
    }
  }
}

TEST_CASE("gradients through batch norms that run by their statistics are the loss's differences") {
  const std::string body =
      "c = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (x)\n"
      "n = BatchNormalization (c, scale, bias, mean, variance)\n"
      "m = Relu (n)\n"
      "b = arbalest.ConvBnRelu <filters = 3, kernel_shape = [3, 3], relu = 0, training_mode = 0> (m)\n"
      "s = Add (b, m)\nr = Relu (s)\n"
      "d = arbalest.ConvBnRelu <filters = 3, kernel_shape = [3, 3]> (r)\n"
      "h = GlobalAveragePool (d)\n" +
      kHead +
      "#initial float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, "
      "float[3] variance = {1, 1, 1}";
  check_gradients(body);
  check_gradients(body, {"d.bn.*"});
  check_gradients(body, {"scale", "bias", "b.*", "d.bn.running_*"});
  // Statistics that nodes compute, of tensors side by side.
  check_gradients(
      "a = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (x)\nb = Neg (x)\nc = Concat <axis = 1> (a, b)\n"
      "m = Mul (w, w)\nv = Exp (u)\nn = BatchNormalization (c, s, t, m, v)\nh = GlobalAveragePool (n)\n" +
      kHead +
      "#initial float[4] s = {1, 2, 1, 1}, float[4] t = {0, 0, 0, 0}, float[4] w = {0.5, 1, 0.2, 0.3}, "
      "float[4] u = {0, 1, 0, 1}");
}

TEST_CASE("gradients through batch norms over parts are the loss's differences, and the loss is that of copies") {
  const auto body = [](const char* first, const char* second) {
    return fmt::format(
               "a = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (x)\n"
               "n1 = arbalest.BatchNorm (a)\nr1 = Relu (n1)\n"
               "b = arbalest.Conv <filters = 2, kernel_shape = [3, 3]> (r1)\n"
               "ab = Concat <axis = 1> (a, b)\ncopy = Identity (ab)\n"
               "n2 = arbalest.BatchNorm ({})\nr2 = Relu (n2)\n"
               "c = arbalest.Conv <filters = 3, kernel_shape = [3, 3]> (r2)\n"
               "abc = Concat <axis = 1> (ab, c)\nall = Identity (abc)\n"
               "n3 = arbalest.BatchNorm ({})\nt = Add (b, b)\np = GlobalAveragePool (n3)\n"
               "q = GlobalAveragePool (t)\nh = Concat <axis = 1> (p, q)\n",
               first, second) +
           kHead;
  };
  const std::vector<std::vector<std::string>> frozen = {{}, {"n2.running_*"}, {"n1.*", "n3.*"}};
  for (const std::vector<std::string>& names : frozen) {
    const double copied = check_gradients(body("copy", "all"), names);
    CHECK(check_gradients(body("ab", "abc"), names) == doctest::Approx(copied).epsilon(1e-12));
  }
}

TEST_CASE("an update follows its formula and leaves the gaps of the arenas at zero") {
  Graph graph = net("h = arbalest.ConvBnRelu <filters = 3, kernel_shape = [3, 3]> (x)\n" + kHead);
  const Program program = make_program(graph, {});
  InDouble net(program.training());
  const ArenaValues& arenas = program.training().arenas;
  net.run();
  const NodeId update = net.graph().find_node("update");
  REQUIRE(update != kNone);
  const double* weights = net.of(arenas.weights);
  const double* next = net.of(net.graph().nodes[update].outputs[0]);
  const double* velocity = net.of(arenas.slots.at(0).value);
  const double* gradient = net.of(arenas.gradients);
  double moved = 0;
  for (int64_t i = 0; i < net.graph().values[arenas.weights].type.elements(); ++i) {
    const double expected = weights[i] - 0.25 * (0.9 * velocity[i] + gradient[i] + 0.001 * weights[i]);
    REQUIRE(next[i] == doctest::Approx(expected).epsilon(1e-12));
    moved += std::abs(next[i] - weights[i]);
  }
  CHECK(moved > 1);
  // Between two members: 3 biases, then nothing up to the next multiple of 64 elements.
  const Value& bias = net.graph().values[net.graph().find_value("logits.bias.gradient")];
  for (int64_t i = 3; i < 64; ++i) CHECK(gradient[bias.view.offset_bytes / 8 + i] == 0);
}

}  // namespace gradient_test
