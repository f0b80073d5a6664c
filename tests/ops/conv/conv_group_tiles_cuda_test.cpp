// SPDX-License-Identifier: Apache-2.0

// Convolutions of narrow groups by kernels of ours. Compiled only with CUDA.

#include <doctest/doctest.h>

#include "ops/conv/grouped/conv_direct.h"
#include "ops/conv/grouped/conv_group_tiles.h"
#include "tests/ops/lowered_tensor.h"
#include "tests/ops/part.h"

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
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = DataType::Bfloat16;
  problem.output_type = kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  problem.x = problem.y = of.x;
  for (const size_t axis : {2, 3}) {
    problem.y[axis] = (of.x[axis] + of.pad_begin + of.pad_end - 2 * of.dilation - 1) / of.stride + 1;
  }
  problem.w = {of.x[1], of.width, 3, 3};
  problem.stride = {of.stride, of.stride};
  problem.dilation = {of.dilation, of.dilation};
  problem.pad_begin = {of.pad_begin, of.pad_begin};
  problem.pad_end = {of.pad_end, of.pad_end};
  return problem;
}

bool takes(const ConvolutionProblem& problem) {
  return kGroupTilesEngine.accepts(device_model("A100"), problem);
}

}  // namespace

TEST_CASE("CUDA: convolutions of narrow groups agree with plain loops, with the same bits each time") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    MESSAGE("SKIP: no GPU");
    return;
  }
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
      {{300, 48, 1, 1}, 24},
  };
  test::Part part;
  for (const Case& of : cases) {
    for (const Kind kind : {Kind::Forward, Kind::GradInput, Kind::GradWeight}) {
      for (const int processors : {1, 132}) {  // which says how many tiles a block has
        if (!part.has_next()) continue;
        CAPTURE(to_string(of.x));
        CAPTURE(of.width);
        CAPTURE(int(kind));
        CAPTURE(processors);
        const ConvolutionProblem problem = problem_of(kind, of);
        REQUIRE(takes(problem));
        const test::LoweredTensor a = test::lowered_noise(kind == Kind::GradInput ? problem.y : problem.x, 1),
                                  b = test::lowered_noise(kind == Kind::GradWeight ? problem.y : problem.w, 2);
        ConvolutionProblem exact = problem;
        exact.type = exact.output_type = DataType::Float32;
        DeviceBuffer expected = test::room_for(problem.output_shape());
        kPlainLoopsEngine.run(
            exact, {.multiprocessors = 132, .a = a.exact.data(), .b = b.exact.data(), .result = expected.data()});
        const DeviceBuffer workspace(kGroupTilesEngine.workspace(problem, processors));
        std::vector<float> results[2];
        for (std::vector<float>& result : results) {
          DeviceBuffer found = test::room_for(problem.output_shape());
          kGroupTilesEngine.run(problem, {.multiprocessors = processors,
                                          .a = a.lowered.data(),
                                          .b = b.lowered.data(),
                                          .result = found.data(),
                                          .workspace = workspace.data()});
          result = test::content(found, problem.output_shape(), problem.output_type);
        }
        CHECK(results[0] == results[1]);
        const int64_t pixels = kind == Kind::GradWeight ? problem.y[0] * problem.y[2] * problem.y[3] : 1;
        CHECK(test::worst_share(results[0], test::content(expected, problem.output_shape()), pixels) < 1);
      }
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
  CHECK(refused([](ConvolutionProblem& p) { p.w = {48, 24, 5, 5}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.kind = Kind::ForwardBias; }));
  CHECK(refused([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
}

}  // namespace conv_group_tiles_cuda_test
