// SPDX-License-Identifier: Apache-2.0

// Convolutions of few channels by kernels of ours. Compiled only with CUDA.

#include <doctest/doctest.h>

#include "ops/conv/conv_thin.h"
#include "ops/conv/grouped/conv_direct.h"
#include "tests/ops/lowered_tensor.h"
#include "tests/ops/part.h"

using namespace arbalest;

namespace conv_thin_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

ConvolutionProblem problem_of(Kind kind, const Shape& x) {
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = DataType::Bfloat16;
  problem.output_type = kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  problem.x = problem.y = x;
  problem.w = {x[1], x[1], 3, 3};
  problem.stride = problem.dilation = problem.pad_begin = problem.pad_end = {1, 1};
  return problem;
}

bool is_thin(const ConvolutionProblem& problem) {
  return kThinEngine.accepts(device_model("A100"), problem);
}

}  // namespace

TEST_CASE("CUDA: convolutions of few channels agree with plain loops, with the same bits each time") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    MESSAGE("SKIP: no GPU");
    return;
  }
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
      for (const int processors : {1, 4, 132}) {  // which says how many tiles a block has
        if (!part.has_next()) continue;
        CAPTURE(to_string(shape));
        CAPTURE(int(kind));
        CAPTURE(processors);
        const ConvolutionProblem problem = problem_of(kind, shape);
        REQUIRE(is_thin(problem));
        const test::LoweredTensor a = test::lowered_noise(shape, 1),
                                  b = test::lowered_noise(kind == Kind::GradWeight ? shape : problem.w, 2);
        ConvolutionProblem exact = problem;
        exact.type = exact.output_type = DataType::Float32;
        DeviceBuffer expected = test::room_for(problem.output_shape());
        kPlainLoopsEngine.run(
            exact, {.multiprocessors = 132, .a = a.exact.data(), .b = b.exact.data(), .result = expected.data()});
        const DeviceBuffer workspace(kThinEngine.workspace(problem, processors));
        std::vector<float> results[2];
        for (std::vector<float>& result : results) {
          DeviceBuffer found = test::room_for(problem.output_shape());
          kThinEngine.run(problem, {.multiprocessors = processors,
                                    .a = a.lowered.data(),
                                    .b = b.lowered.data(),
                                    .result = found.data(),
                                    .workspace = workspace.data()});
          result = test::content(found, problem.output_shape(), problem.output_type);
        }
        CHECK(results[0] == results[1]);
        const int64_t pixels = kind == Kind::GradWeight ? shape[0] * shape[2] * shape[3] : 1;
        CHECK(test::worst_share(results[0], test::content(expected, problem.output_shape()), pixels) < 1);
      }
    }
  }
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
