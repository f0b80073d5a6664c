// SPDX-License-Identifier: Apache-2.0

// Convolutions of narrow groups by kernels of ours. Compiled only with CUDA.

#include <doctest/doctest.h>

#include "ops/conv/grouped/conv_group_tiles.h"
#include "tests/ops/conv/engine_check.h"
#include "tests/part.h"

using namespace arbalest;

namespace conv_group_tiles_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

struct Case {
  Shape x;
  int64_t width = 0;  // channels of a group
  int64_t stride = 1, dilation = 1, pad_begin = 1, pad_end = 1;
};

ConvolutionProblem problem_of(Kind kind, const Case& of) {
  return test::ConvolutionForm{of.x[0],   of.x[1],     of.x[2],      of.x[3],    of.x[1], 3,
                               of.stride, of.dilation, of.pad_begin, of.pad_end, of.width}
      .problem(kind);
}

bool takes(const ConvolutionProblem& problem) {
  return test::accepts(kGroupTilesEngine, problem);
}

}  // namespace

TEST_CASE("CUDA: convolutions of narrow groups agree with plain loops, with the same bits each time") {
  if (!test::has_gpu()) return;
  const std::vector<Case> cases = {
      // Two groups joined, in sets of four and of one.
      {{3, 32, 13, 11}, 4},
      {{2, 128, 28, 28}, 4},
      {{2, 24, 9, 9}, 4, 2},
      {{2, 64, 7, 7}, 8},
      {{5, 104, 14, 14}, 8},
      {{3, 160, 9, 9}, 16},
      {{2, 400, 7, 7}, 16},
      // Chunks of two taps make a step, tiles of several images, rows that tiles are no multiple of.
      {{64, 336, 14, 14}, 24},
      {{19, 120, 7, 7}, 24},
      {{3, 48, 56, 56}, 24},
      {{2, 120, 56, 56}, 24, 2},
      {{2, 64, 40, 41}, 32, 2},
      {{2, 80, 15, 15}, 40, 1, 2, 2, 2},
      {{2, 96, 14, 14}, 48},
      {{3, 112, 20, 9}, 56},
      {{2, 128, 14, 14}, 64},
      {{1, 192, 8, 30}, 64},
      // One row a tile, no padding, padding on one side, more padding than the filter needs, images of a pixel.
      {{1, 32, 3, 200}, 16},
      {{2, 48, 9, 10}, 24, 1, 1, 0, 0},
      {{2, 48, 10, 10}, 24, 2, 1, 0, 1},
      {{3, 96, 7, 8}, 48, 2, 1, 2, 1},
      {{17, 32, 13, 14}, 4, 2},
      {{2, 128, 28, 27}, 64, 2},
      {{2, 48, 6, 6}, 24, 1, 1, 2, 2},
      // Windows smaller than what a step reads of the filter.
      {{1, 48, 3, 3}, 24},
      {{1, 112, 3, 3}, 56},
      {{4, 48, 16, 16}, 24},
      {{300, 48, 1, 1}, 24},
  };
  test::Part part;
  for (const Case& of : cases) {
    for (const Kind kind : {Kind::Forward, Kind::GradInput, Kind::GradWeight}) {
      if (part.has_next()) test::check_engine(kGroupTilesEngine, problem_of(kind, of), {1, 132});
    }
  }
}

TEST_CASE("which convolutions have narrow groups") {
  const Case good{{2, 48, 8, 8}, 24};
  CHECK(takes(problem_of(Kind::Forward, good)));
  CHECK_FALSE(kGroupTilesEngine.accepts(device_model("RTX 4090"), problem_of(Kind::Forward, good)));
  CHECK(takes(problem_of(Kind::GradWeight, {good.x, 24, 2})));
  CHECK(takes(problem_of(Kind::GradWeight, {good.x, 24, 3})));
  CHECK(takes(problem_of(Kind::GradInput, {good.x, 24, 2})));
  CHECK_FALSE(takes(problem_of(Kind::GradInput, {good.x, 24, 3})));
  CHECK_FALSE(takes(problem_of(Kind::GradInput, {good.x, 24, 2, 2})));
  CHECK_FALSE(takes(problem_of(Kind::GradWeight, {{1, 72, 8, 8}, 24, 1, 12000, 12000, 12000})));
  CHECK_FALSE(takes(problem_of(Kind::Forward, {{0, 48, 8, 8}, 24})));
  CHECK_FALSE(takes(problem_of(Kind::Forward, {good.x, 48})));  // one group
  CHECK_FALSE(takes(problem_of(Kind::Forward, {good.x, 12})));
  CHECK_FALSE(takes(problem_of(Kind::Forward, {{2, 144, 8, 8}, 72})));
  CHECK_FALSE(takes(problem_of(Kind::Forward, {{2, 12, 8, 8}, 4})));  // three groups are no pairs
  CHECK_FALSE(takes(problem_of(Kind::Forward, {{2, 48, 2, 257}, 24})));
  CHECK_FALSE(takes(problem_of(Kind::GradWeight, {{2, 128, 4, 250}, 64, 1, 9, 9, 9})));  // too much shared memory
  const auto refused = [&](auto change) {
    ConvolutionProblem problem = problem_of(Kind::Forward, good);
    change(problem);
    return !takes(problem);
  };
  CHECK(refused([](ConvolutionProblem& p) { p.w = {96, 24, 3, 3}; }));
  CHECK(refused([](ConvolutionProblem& p) {
    p.kind = Kind::GradInput;
    p.stride = {1, 2};
  }));
  CHECK(refused([](ConvolutionProblem& p) { p.w = {48, 24, 5, 5}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.kind = Kind::ForwardBias; }));
  CHECK(refused([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
}

}  // namespace conv_group_tiles_cuda_test
