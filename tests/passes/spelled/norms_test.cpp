// SPDX-License-Identifier: Apache-2.0

// Norms of rows that exporters spell out become operators, and compute what the file says. What only looks like one
// stays. Powers by small constants are products and roots.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ops/norm/layer_norm.h"
#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace norms_test {
namespace {

const std::string kBefore =
    "two = Constant <value_float = 2.0> ()\nmore = Constant <value_float = 0.01> ()\n"
    "one = Constant <value_float = 1.0> ()\nhalf = Constant <value_float = -0.5> ()\nlast = Constant <value_ints = "
    "[-1]> ()\nboth = Constant <value_ints = [3, 2]> ()\nfirst = Constant <value_ints = [1]> ()\n";
const std::string kCentre = "u = ReduceMean (x, last)\nc = Sub (x, u)\n";
const std::string kNorm =
    "p = Pow (c, two)\nm = ReduceMean (p, last)\na = Add (m, more)\nr = Sqrt (a)\nn = Div (c, r)\n";

std::string with(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

// The text with another operand in the place of one.
std::string reading(const std::string& text, const std::string& what, const std::string& by) {
  return with(with(with(text, "(" + what + ",", "(" + by + ","), "(" + what + ")", "(" + by + ")"), ", " + what + ")",
              ", " + by + ")");
}

// A net with `body` between the head, which reads y, and x, which is float[4, 2, 6, 6]. All numbers of it are trained.
std::string net_of(const std::string& body) {
  return kBefore + "t = Mul (x, wide)\n" + reading(body, "x", "t") +
         "z0 = Tanh (y)\nr0 = Add (w, b)\nq0 = Add (z0, r0)\nh = Flatten (q0)\n" + kHead +
         "#initial float[6] w = {0.5, 1.5, 1, 2, -1, 0.25}, float[6] b = {0.1, 0.2, 0.3, -0.1, -0.2, 0}, "
         "float[6, 6] wide = {" +
         numbers(36) + "}";
}

Program program_of(const std::string& body, std::set<std::string> without) {
  ProgramOptions options;
  options.without = std::move(without);
  return make_program(net(net_of(body)), options);
}

// The body's norm is one node of this operator, and trains to the same numbers.
void check_found(const std::string& body, std::string_view op, size_t inputs) {
  INFO(body);
  const Program found = program_of(body, {}), spelled = program_of(body, {"fuse_norms"});
  const Graph& graph = found.training().graph;
  CHECK(only(graph, op).inputs.size() == inputs);
  CHECK(count_ops(graph, "ReduceMean") == 0);
  CHECK(count_ops(graph, "Sqrt") == 0);
  CHECK(count_ops(spelled.training().graph, op) == 0);
  const auto cpu = make_cpu_device();
  CHECK(difference(numbers_of(spelled, {}, *cpu, DataType::Float64), numbers_of(found, {}, *cpu, DataType::Float64),
                   1e-8) == "");
}

}  // namespace

TEST_CASE("norms of rows are found in every spelling, with their scale and bias") {
  const std::string rms = reading(kNorm, "c", "x"), scaled = "y = Mul (w, n)\n", plain = "y = Identity (n)\n";
  const std::string by_root = "n = Div (c, r)\n";
  for (const std::string& quotient : {by_root, std::string("i = Reciprocal (r)\nn = Mul (c, i)\n"),
                                      std::string("i = Div (one, r)\nn = Mul (i, c)\n")}) {
    const std::string norm = with(kNorm, by_root, quotient);
    check_found(kCentre + norm + "s = Mul (n, w)\ny = Add (b, s)\n", "LayerNormalization", 3);
    check_found(reading(norm, "c", "x") + scaled, "RMSNormalization", 2);
  }
  check_found(with(rms, "r = Sqrt (a)\nn = Div (x, r)\n", "i = Pow (a, half)\nn = Mul (x, i)\n") + plain,
              "RMSNormalization", 1);
  check_found(with(rms, "Pow (x, two)", "Mul (x, x)") + scaled, "RMSNormalization", 2);
  check_found(kCentre + kNorm + plain, "arbalest.Normalize", 1);
  check_found(kCentre + kNorm + scaled, "LayerNormalization", 2);
  check_found(with(rms, "last", "both") + "y = Mul (n, wide)\n", "RMSNormalization", 2);
  check_found(rms + "s = Mul (n, w)\ny = Add (s, b)\n", "RMSNormalization", 2);  // whose bias is added apart
  // torch.var takes a mean of its own, and the newer exporter brings it to the shape that it has.
  const std::string var = "u2 = ReduceMean (x, last)\nc2 = Sub (x, u2)\n" + kCentre +
                          "p = Mul (c2, c2)\nm0 = ReduceMean (p, last)\ns0 = Shape (m0)\nm1 = Reshape (m0, s0)\n"
                          "m = Expand (m1, s0)\na = Add (m, more)\nr = Sqrt (a)\nn = Div (c, r)\n";
  check_found(var + scaled, "LayerNormalization", 2);
  check_found(with(var, "m0 = ReduceMean (p, last)\ns0 = Shape (m0)\n",
                   "m0 = ReduceMean <keepdims = 0> (p, last)\ns0 = Shape (u2)\n") +
                  scaled,
              "LayerNormalization", 2);
}

TEST_CASE("norms of rows that are found keep their scale in float, and none becomes one that operators refuse") {
  const std::string rms = reading(kNorm, "c", "x");
  ProgramOptions options;
  options.bf16 = true;
  const Program lowered = make_program(net(net_of(rms + "y = Mul (n, w)\n")), options);
  const Graph& graph = lowered.training().graph;
  const Node& norm = only(graph, "RMSNormalization");
  CHECK(graph.values[norm.inputs[LayerNormInput::X]].type.dtype == DataType::Bfloat16);
  CHECK(graph.values[norm.inputs[LayerNormInput::Scale]].type.dtype == DataType::Float32);
  // A graph that computes in bfloat16 by itself scales by a row of bfloat16.
  std::string types =
      "s = Cast <to = 16> (w)\nk = Cast <to = 16> (two)\ne = Cast <to = 16> (more)\nv = Cast <to = 16> (x)\n";
  const std::string body =
      with(with(reading(kNorm, "c", "v"), "two)", "k)"), "more)", "e)") + "o = Mul (n, s)\ny = Cast <to = 1> (o)\n";
  const Program stated = program_of(types + body, {});
  CHECK(only(stated.training().graph, "RMSNormalization").inputs.size() == 1);
}

TEST_CASE("what is no norm of rows stays") {
  const std::string rms = reading(kNorm, "c", "x") + "y = Mul (n, w)\n";
  for (const std::string& body :
       {with(rms, "last", "first"),                                      // of an axis in the middle
        with(rms, "Pow (x, two)", "Mul (x, n0)"),                        // no square
        with(rms, "Add (m, more)", "Add (m, w)"),                        // by elements
        with(rms, "n = Div (x, r)\n", "z = Abs (x)\nn = Div (z, r)\n"),  // of another tensor
        with(rms, "y = Mul (n, w)\n", "y = Add (n, r)\n")}) {            // whose root something else reads
    INFO(body);
    const Program program = program_of("n0 = Sigmoid (x)\n" + body, {});
    CHECK(count_ops(program.training().graph, "RMSNormalization") == 0);
    CHECK(count_ops(program.training().graph, "Sqrt") == 1);
  }
  // A mean over other axes is taken off: c is normalised as it is.
  const Program other = program_of("u = ReduceMean (x, both)\nc = Sub (x, u)\n" + kNorm + "y = Mul (n, w)\n", {});
  CHECK(count_ops(other.training().graph, "RMSNormalization") == 1);
}

TEST_CASE("powers by small constants are products and roots") {
  for (const auto& [exponent, op, count] : {std::tuple{2.0, "Mul", 1},
                                            {3.0, "Mul", 2},
                                            {0.5, "Sqrt", 1},
                                            {-0.5, "Reciprocal", 1},
                                            {-1.0, "Reciprocal", 1},
                                            {-2.0, "Mul", 1}}) {
    CAPTURE(exponent);
    const std::string body =
        fmt::format("e = Constant <value_float = {:.1f}> ()\nl = Abs (x)\nk = Add (l, one)\n", exponent);
    const Graph graph = expanded(net_of(body + "y = Pow (k, e)\n"));
    CHECK(count_ops(graph, "Pow") == 0);
    CHECK(count_ops(graph, op) == count + count_ops(expanded(net_of(body + "y = Identity (k)\n")), op));
    // A row of the same exponents, which are no constants, and are not trained either.
    const std::string row = "f = Sub (w, w)\ng = arbalest.StopGradient (f)\nv = Add (g, e)\ny = Pow (k, v)\n";
    const auto cpu = make_cpu_device();
    const Program made = program_of(body + "y = Pow (k, e)\n", {}), general = program_of(body + row, {});
    CHECK(difference(numbers_of(made, {}, *cpu, DataType::Float64), numbers_of(general, {}, *cpu, DataType::Float64),
                     1e-8) == "");
  }
  CHECK(count_ops(expanded(net_of("e = Constant <value_float = 2.5> ()\ny = Pow (x, e)\n")), "Pow") == 1);
  CHECK(count_ops(expanded(net_of("y = Pow (x, w)\n")), "Pow") == 1);
}

}  // namespace norms_test
