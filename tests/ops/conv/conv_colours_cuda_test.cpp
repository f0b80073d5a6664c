// SPDX-License-Identifier: Apache-2.0

// Convolutions of three channels by a kernel of ours. Compiled only with CUDA.

#include "ops/conv/conv_colours.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "ops/conv/grouped/conv_direct.h"
#include "tests/ops/lowered_tensor.h"

using namespace arbalest;

namespace conv_colours_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

ConvolutionProblem problem_of(Kind kind, int64_t images, int64_t height, int64_t width, int64_t filters) {
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = problem.output_type = DataType::Bfloat16;
  problem.x = {images, 3, height, width};
  problem.w = {filters, 3, 3, 3};
  problem.y = {images, filters, height, width};
  problem.stride = problem.dilation = problem.pad_begin = problem.pad_end = {1, 1};
  return problem;
}

bool has_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  MESSAGE("SKIP: no GPU");
  return false;
}

bool is_of_colours(const ConvolutionProblem& problem) {
  return kColoursEngine.accepts(device_model("A100"), problem);
}

}  // namespace

TEST_CASE("CUDA: convolutions of colours agree with plain loops, with the same bits each time") {
  if (!has_device()) return;
  struct Form {
    int64_t images, height, width, filters;
  };
  for (const Form& f : {Form{2, 8, 32, 64}, Form{3, 33, 50, 64}, Form{1, 1, 1, 8}, Form{5, 7, 65, 24},
                        Form{2, 9, 31, 136}, Form{16, 40, 96, 64}}) {
    for (const Kind kind : {Kind::Forward, Kind::ForwardBias}) {
      ConvolutionProblem problem = problem_of(kind, f.images, f.height, f.width, f.filters);
      problem.relu = kind == Kind::ForwardBias;
      CAPTURE(to_string(problem.x));
      CAPTURE(f.filters);
      REQUIRE(is_of_colours(problem));
      const test::LoweredTensor x = test::lowered_noise(problem.x, 1), w = test::lowered_noise(problem.w, 2);
      const DeviceBuffer bias = test::noise({f.filters}, 3);
      const auto* bias_data = kind == Kind::ForwardBias ? static_cast<const float*>(bias.data()) : nullptr;
      ConvolutionProblem exact = problem;
      exact.type = exact.output_type = DataType::Float32;
      DeviceBuffer expected = test::room_for(problem.y);
      kPlainLoopsEngine.run(exact, {.multiprocessors = 132,
                                    .a = x.exact.data(),
                                    .b = w.exact.data(),
                                    .bias = bias_data,
                                    .result = expected.data()});
      std::vector<float> right = test::content(expected, problem.y);
      if (problem.relu) std::for_each(right.begin(), right.end(), [](float& value) { value = std::max(value, 0.0f); });
      std::vector<std::vector<float>> results;
      for (const int processors : {1, 7, 132, 132}) {  // which says how many tiles a block makes
        DeviceBuffer found = test::room_for(problem.y);
        kColoursEngine.run(problem, {.multiprocessors = processors,
                                     .a = x.lowered.data(),
                                     .b = w.lowered.data(),
                                     .bias = bias_data,
                                     .result = found.data()});
        results.push_back(test::content(found, problem.y, problem.output_type));
      }
      for (const std::vector<float>& result : results) CHECK(result == results[0]);
      CHECK(test::worst_share(results[0], right, 1) < 1);
    }
  }
}

TEST_CASE("CUDA: a colour that is not a number reaches the pixels around it, and no others") {
  if (!has_device()) return;
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
  const auto refused = [&](auto change) {
    ConvolutionProblem problem = good;
    change(problem);
    return !is_of_colours(problem);
  };
  CHECK(refused([](ConvolutionProblem& p) { p.kind = Kind::GradWeight; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x[1] = p.w[1] = 4; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w[0] = p.y[1] = 60; }));
  CHECK(refused([](ConvolutionProblem& p) { p.w[2] = 5; }));
  CHECK(refused([](ConvolutionProblem& p) { p.stride = {2, 2}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.dilation = {1, 2}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.pad_end = {1, 0}; }));
  CHECK(refused([](ConvolutionProblem& p) { p.type = p.output_type = DataType::Float32; }));
  CHECK(refused([](ConvolutionProblem& p) { p.x = {2, 3, 1, 12, 13}; }));
}

}  // namespace conv_colours_cuda_test
