// SPDX-License-Identifier: Apache-2.0

// Logarithms of probabilities are computed of the logits: the same numbers, and finite ones where the probability is 0.

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "tests/passes/passes_fixture.h"
#include "tests/passes/program_numbers.h"

using namespace arbalest;
using namespace arbalest::test;

namespace logarithms_test {
namespace {

// `body` makes y of t, which is trained and of some `scale`.
Program program_of(const std::string& body, const std::string& scale, std::set<std::string> without) {
  ProgramOptions options;
  options.without = std::move(without);
  return make_program(net("one = Constant <value_float = 1.0> ()\ntwo = Constant <value_float = 2.0> ()\n"
                          "k = Constant <value_float = " +
                          scale + "> ()\ns = Mul (x, k)\nt = Mul (s, wide)\n" + body + "h = Flatten (y)\n" + kHead +
                          "#initial float[6, 6] wide = {" + numbers(36) + "}"),
                      options);
}

void check_found(const std::string& body, std::string_view op) {
  INFO(body);
  const auto cpu = make_cpu_device();
  const Program found = program_of(body, "0.5", {}), spelled = program_of(body, "0.5", {"fuse_logarithms"});
  CHECK(count_ops(found.training().graph, op) == 1);
  CHECK(count_ops(found.training().graph, "Log") == 0);
  CHECK(count_ops(spelled.training().graph, op) == 0);
  CHECK(difference(numbers_of(spelled, {}, *cpu, DataType::Float64), numbers_of(found, {}, *cpu, DataType::Float64),
                   1e-8) == "");
  const Numbers large = numbers_of(program_of(body, "1000", {}), {}, *cpu, DataType::Float64);
  for (const auto& [name, values] : large) {
    INFO(name);
    CHECK(std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); }));
  }
}

}  // namespace

TEST_CASE("logarithms of Sigmoid, of what is left of 1, and of Softmax are found") {
  check_found("p = Sigmoid (t)\ny = Log (p)\n", "Softplus");
  check_found("p = Sigmoid (t)\nq = Sub (one, p)\ny = Log (q)\n", "Softplus");
  check_found("p = Softmax <axis = 1> (t)\ny = Log (p)\n", "LogSoftmax");
}

TEST_CASE("other logarithms stay") {
  for (const char* body : {"p = Sigmoid (t)\nq = Sub (two, p)\ny = Log (q)\n",
                           "p = Sigmoid (t)\nq = Add (p, one)\ny = Log (q)\n", "p = Exp (t)\ny = Log (p)\n"}) {
    INFO(body);
    CHECK(count_ops(program_of(body, "0.5", {}).training().graph, "Log") > 0);
  }
}

}  // namespace logarithms_test
