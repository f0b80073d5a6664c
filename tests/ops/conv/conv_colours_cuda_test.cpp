// SPDX-License-Identifier: Apache-2.0

// Convolutions of one to four channels by kernels of ours. Compiled only with CUDA.

#include "ops/conv/few/conv_colours.h"

#include <doctest/doctest.h>

#include <limits>

#include "tests/ops/conv/engine_check.h"

using namespace arbalest;

namespace conv_colours_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

ConvolutionProblem problem_of(Kind kind, int64_t images, int64_t height, int64_t width, int64_t filters) {
  return test::ConvolutionForm{images, 3, height, width, filters, 3, 1, 1, 1, 1}.problem(kind);
}

bool is_of_colours(const ConvolutionProblem& problem) {
  return test::accepts(kColoursEngine, problem);
}

}  // namespace

TEST_CASE("CUDA: convolutions of colours agree with plain loops, with the same bits each time") {
  if (!test::has_gpu()) return;
  using Form = test::ConvolutionForm;
  for (const Form& f : {Form{2, 3, 8, 32, 64, 3, 1, 1, 1, 1}, Form{3, 3, 33, 50, 64, 3, 1, 1, 1, 1},
                        Form{1, 3, 1, 1, 8, 3, 1, 1, 1, 1}, Form{5, 3, 7, 65, 24, 3, 1, 1, 1, 1},
                        Form{2, 3, 9, 31, 136, 3, 1, 1, 1, 1}, Form{16, 3, 96, 96, 24, 3, 2, 1, 1, 1},
                        Form{9, 3, 65, 64, 40, 3, 2, 1, 1, 1}, Form{64, 1, 28, 28, 20, 5, 1, 1, 0, 0},
                        Form{4, 3, 64, 64, 96, 4, 4, 1, 0, 0}, Form{3, 1, 19, 17, 32, 5, 2, 1, 2, 2},
                        Form{2, 3, 21, 40, 16, 5, 2, 1, 2, 2}, Form{2, 3, 21, 40, 24, 5, 1, 1, 2, 2},
                        Form{64, 3, 32, 32, 16, 3, 1, 1, 1, 1}, Form{2, 2, 21, 40, 256, 3, 2, 1, 0, 1}}) {
    for (const Kind kind : {Kind::Forward, Kind::ForwardBias, Kind::GradWeight}) {
      test::check_engine(kColoursEngine, f.problem(kind), {1, 7, 132});
    }
  }
}

TEST_CASE("CUDA: a colour that is not a number reaches the pixels around it, and no others") {
  if (!test::has_gpu()) return;
  const ConvolutionProblem problem = problem_of(Kind::Forward, 1, 11, 40, 64);
  const int64_t row = 6, column = 20;
  for (const int64_t channel : {0, 1, 2}) {
    CAPTURE(channel);
    std::vector<bfloat16> pixels(size_t(element_count(problem.x)), bfloat16(0.5f));
    pixels[size_t((row * problem.x[3] + column) * 3 + channel)] = bfloat16(std::numeric_limits<float>::quiet_NaN());
    const DeviceBuffer x = uploaded(pixels);
    const test::LoweredTensor w = test::lowered_noise(problem.w, 2);
    DeviceBuffer y = test::room_for(problem.y);
    kColoursEngine.run(problem, {.multiprocessors = 132, .a = x.data(), .b = w.lowered.data(), .result = y.data()});
    const std::vector<float> found = test::content(y, problem.y, DataType::Bfloat16);
    int64_t wrong = 0;
    for (int64_t pixel = 0; pixel < problem.x[2] * problem.x[3]; ++pixel) {
      const int64_t down = pixel / problem.x[3] - row, across = pixel % problem.x[3] - column;
      const bool near = std::abs(down) <= 1 && std::abs(across) <= 1;
      for (int64_t c = 0; c < 64; ++c) wrong += std::isnan(found[size_t(pixel * 64 + c)]) != near;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("which convolutions are of colours") {
  const ConvolutionProblem good = problem_of(Kind::ForwardBias, 2, 12, 13, 64);
  CHECK(is_of_colours(good));
  CHECK(is_of_colours(problem_of(Kind::GradWeight, 2, 12, 13, 20)));
  const auto refused = [&](auto change) {
    ConvolutionProblem problem = good;
    change(problem);
    return !is_of_colours(problem);
  };
  CHECK(refused([](ConvolutionProblem& p) { p.kind = Kind::GradInput; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[1] = p.w[1] = 5; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w[0] = p.y[1] = 60; }));  // of a row of 13 pixels
  CHECK(refused([](ConvolutionProblem& p) { p.w[0] = p.y[1] = 264; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w[2] = 9; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[3] = 8192; }));  // three rows are too much for shared memory
  CHECK(refused([](ConvolutionProblem& p) { p.dilation = {1, 2}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x = {2, 3, 1, 12, 13}; }));
}

}  // namespace conv_colours_cuda_test
