// SPDX-License-Identifier: Apache-2.0

// Convolutions of few channels by kernels of ours. Compiled only with CUDA.

#include <doctest/doctest.h>

#include "ops/conv/few/conv_thin.h"
#include "tests/ops/conv/engine_check.h"
#include "tests/part.h"

using namespace arbalest;

namespace conv_thin_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

ConvolutionProblem problem_of(Kind kind, const Shape& x) {
  return test::ConvolutionForm{x[0], x[1], x[2], x[3], x[1], 3, 1, 1, 1, 1}.problem(kind);
}

bool is_thin(const ConvolutionProblem& problem) {
  return test::accepts(kThinEngine, problem);
}

}  // namespace

TEST_CASE("CUDA: convolutions of few channels agree with plain loops, with the same bits each time") {
  if (!test::has_gpu()) return;
  // Images smaller than tiles, rows that tiles are no multiple of.
  const std::vector<Shape> shapes = {{3, 16, 13, 11},
                                     {2, 16, 1, 1},
                                     {1, 16, 40, 64},
                                     {24, 16, 32, 32},
                                     {5, 32, 17, 19},
                                     {2, 32, 28, 28},
                                     {40, 32, 16, 16},
                                     {2, 64, 7, 9},
                                     {1, 64, 56, 56},
                                     {65, 64, 8, 8},
                                     // Several tiles a block, the last block with fewer.
                                     {64, 16, 32, 32},
                                     {129, 16, 16, 16},
                                     {150, 32, 16, 16},
                                     {601, 64, 8, 8}};
  test::Part part;
  for (const Shape& shape : shapes) {
    for (const Kind kind : {Kind::Forward, Kind::GradInput, Kind::GradWeight}) {
      if (part.has_next()) test::check_engine(kThinEngine, problem_of(kind, shape), {1, 4, 132});
    }
  }
}

TEST_CASE("statistics of convolutions of few channels come in chunks of whole tiles, if tiles are full") {
  const auto takes = [](const Shape& image, int64_t chunk_pixels) {
    return kThinStatistics.accepts(device_model("H200"), problem_of(Kind::Forward, image), chunk_pixels);
  };
  CHECK(takes({64, 16, 32, 32}, 0));
  CHECK(takes({64, 16, 32, 32}, 2048));
  CHECK_FALSE(takes({64, 16, 32, 32}, 100));
  CHECK(takes({64, 64, 8, 8}, 128));
  CHECK_FALSE(takes({128, 64, 14, 14}, 196));  // that of conv_halo.h, and seven tiles that are half empty
  CHECK_FALSE(takes({256, 64, 56, 56}, 56 * 4));
}

TEST_CASE("which convolutions have few channels") {
  const ConvolutionProblem good = problem_of(Kind::Forward, {2, 16, 8, 8});
  CHECK(is_thin(good));
  CHECK_FALSE(kThinEngine.accepts(device_model("RTX 4090"), good));
  const auto refused = [&](auto change) {
    ConvolutionProblem problem = good;
    change(problem);
    return !is_thin(problem);
  };
  CHECK(refused([](ConvolutionProblem& p) { p.stride = {2, 1}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.dilation = {2, 2}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.pad_end = {1, 0}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w = {16, 8, 3, 3}; }));  // groups
  CHECK(refused([](ConvolutionProblem& p) { p.w = {32, 16, 3, 3}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w = {16, 16, 3, 1}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[3] = p.y[3] = 65; }));
  CHECK(refused([](ConvolutionProblem& p) { p.kind = Kind::ForwardBias; }));
  CHECK(refused([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
  CHECK(refused([](ConvolutionProblem& p) { p.output_type = DataType::Float32; }));
}

}  // namespace conv_thin_cuda_test
