// SPDX-License-Identifier: Apache-2.0

// Filter gradients of pointwise convolutions by a kernel of ours. Compiled only with CUDA.

#include "ops/conv/conv_pixel_sums.h"

#include "tests/ops/conv/engine_check.h"
#include "tests/part.h"

using namespace arbalest;

namespace conv_pixel_sums_cuda_test {
namespace {

ConvolutionProblem problem_of(const test::ConvolutionForm& form) {
  return form.problem(ConvolutionProblem::Kind::GradWeight);
}

}  // namespace

TEST_CASE("CUDA: filter gradients of pointwise convolutions agree with plain loops, with the same bits each time") {
  if (!test::has_gpu()) return;
  // Images, channels, height, width, filters: words of 16 bytes and of 4, every tile, several tiles.
  const std::vector<test::ConvolutionForm> forms = {
      {8, 58, 28, 28, 58}, {8, 116, 14, 14, 116}, {3, 24, 19, 23, 144}, {2, 64, 56, 56, 256},  {2, 256, 56, 56, 64},
      {5, 16, 17, 13, 64}, {1, 2, 7, 5, 4},       {40, 232, 7, 7, 90},  {9, 512, 28, 28, 128}, {64, 888, 1, 1, 84}};
  test::Part part;
  for (const test::ConvolutionForm& form : forms) {
    if (part.has_next()) test::check_engine(kPixelSumsEngine, problem_of(form), {1, 132});
  }
}

TEST_CASE("which filter gradients are sums over pixels") {
  const ConvolutionProblem good = problem_of({8, 58, 28, 28, 58});
  CHECK(test::accepts(kPixelSumsEngine, good));
  CHECK_FALSE(kPixelSumsEngine.accepts(device_model("RTX 4090"), good));
  const auto refused = [&](auto change) {
    ConvolutionProblem problem = good;
    change(problem);
    return !test::accepts(kPixelSumsEngine, problem);
  };
  CHECK(refused([](ConvolutionProblem& p) { p.kind = ConvolutionProblem::Kind::Forward; }));
  CHECK(refused([](ConvolutionProblem& p) { p.output_type = DataType::Bfloat16; }));
  CHECK(refused([](ConvolutionProblem& p) { p.stride = {1, 2}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.pad_end = {1, 0}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w = {58, 29, 1, 1}; }));  // groups
  CHECK(refused([](ConvolutionProblem& p) { p.w = {57, 58, 1, 1}; }));  // an odd number of filters
  CHECK(refused([](ConvolutionProblem& p) { p.w = {58, 58, 1, 3}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[0] = p.y[0] = 0; }));
  CHECK(test::accepts(kPixelSumsEngine, problem_of({64, 888, 1, 1, 84})));        // SE
  CHECK_FALSE(test::accepts(kPixelSumsEngine, problem_of({8, 512, 7, 7, 512})));  // about as many channels as pixels
}

}  // namespace conv_pixel_sums_cuda_test
