// SPDX-License-Identifier: Apache-2.0

// Convolutions of small images by kernels of ours. Compiled only with CUDA.

#include "ops/conv/few/conv_small.h"

#include <doctest/doctest.h>

#include "tests/ops/conv/engine_check.h"
#include "tests/part.h"

using namespace arbalest;

namespace conv_small_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

bool is_small(const ConvolutionProblem& problem) {
  return test::accepts(kSmallEngine, problem);
}

void check(Kind kind, const test::ConvolutionForm& form, test::Part& part) {
  if (part.has_next()) test::check_engine(kSmallEngine, form.problem(kind), {1, 7, 132});
}

}  // namespace

TEST_CASE("CUDA: convolutions of small images agree with plain loops, with the same bits each time") {
  if (!test::has_gpu()) return;
  const std::vector<test::ConvolutionForm> forms = {
      {64, 1, 28, 28, 20, 5},  // LeNet
      {64, 20, 12, 12, 50, 5},
      {3, 3, 32, 32, 6, 5, 1, 1, 2, 2},
      {2, 6, 14, 14, 16, 5},
      {5, 8, 9, 11, 8, 3, 1, 1, 1, 1},
      {4, 64, 8, 8, 64, 3, 1, 1, 1, 0},  // all filters at once
      {3, 33, 13, 7, 17, 3, 1, 2, 2, 2},
      {2, 7, 20, 9, 9, 2, 1, 1, 0, 1},  // uneven padding
      {1, 5, 7, 7, 1, 7},               // one number a window
      {300, 16, 6, 6, 24, 3},
      {2, 2, 64, 64, 3, 4, 1, 1, 2, 1},
      {2, 12, 5, 5, 10, 3, 1, 1, 4, 4},  // more padding than a window has
  };
  test::Part part;
  for (const test::ConvolutionForm& form : forms) {
    for (const Kind kind : {Kind::Forward, Kind::ForwardBias, Kind::GradInput, Kind::GradWeight}) {
      check(kind, form, part);
    }
  }
  const std::vector<test::ConvolutionForm> strided_forms = {{3, 3, 31, 29, 20, 5, 2, 1, 2, 2},
                                                            {2, 24, 15, 16, 40, 3, 3, 1, 1, 0}};
  for (const test::ConvolutionForm& form : strided_forms) {
    for (const Kind kind : {Kind::Forward, Kind::GradWeight}) check(kind, form, part);
  }
}

TEST_CASE("which convolutions are of small images") {
  const ConvolutionProblem good = test::ConvolutionForm{2, 20, 12, 12, 50, 5}.problem(Kind::Forward);
  CHECK(is_small(good));
  const auto refused = [&](auto change) {
    ConvolutionProblem problem = good;
    change(problem);
    return !is_small(problem);
  };
  CHECK(refused([](ConvolutionProblem& p) { p.w = {50, 10, 5, 5}; }));  // groups
  CHECK(refused([](ConvolutionProblem& p) { p.w = {50, 20, 1, 1}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w = {50, 20, 8, 5}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[3] = 65; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[1] = p.w[1] = 65; }));
  CHECK(refused([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
  CHECK(refused([](ConvolutionProblem& p) { p.output_type = DataType::Float32; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x = {2, 20, 1, 12, 12}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.dilation = {1, 20000}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.pad_begin = {60000, 0}; }));
  const ConvolutionProblem strided = test::ConvolutionForm{2, 20, 12, 12, 50, 5, 2}.problem(Kind::GradInput);
  CHECK_FALSE(is_small(strided));
}

}  // namespace conv_small_cuda_test
