// SPDX-License-Identifier: Apache-2.0

// Convolutions of small images by kernels of ours. Compiled only with CUDA.

#include "ops/conv/conv_small.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "ops/conv/grouped/conv_direct.h"
#include "tests/ops/lowered_tensor.h"
#include "tests/ops/part.h"

using namespace arbalest;

namespace conv_small_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

// Extents of a convolution with square windows.
struct Form {
  int64_t images, channels, height, width, filters, kernel, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;
};

ConvolutionProblem problem_of(Kind kind, const Form& f) {
  const auto made = [&](int64_t extent) {
    return (extent + f.pad_begin + f.pad_end - (f.kernel - 1) * f.dilation - 1) / f.stride + 1;
  };
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = DataType::Bfloat16;
  problem.output_type = kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  problem.x = {f.images, f.channels, f.height, f.width};
  problem.w = {f.filters, f.channels, f.kernel, f.kernel};
  problem.y = {f.images, f.filters, made(f.height), made(f.width)};
  problem.stride = {f.stride, f.stride};
  problem.dilation = {f.dilation, f.dilation};
  problem.pad_begin = {f.pad_begin, f.pad_begin};
  problem.pad_end = {f.pad_end, f.pad_end};
  return problem;
}

bool is_small(const ConvolutionProblem& problem) {
  return kSmallEngine.accepts(device_model("A100"), problem);
}

void check(Kind kind, const Form& form, bool relu, test::Part& part) {
  if (!part.has_next()) return;
  ConvolutionProblem problem = problem_of(kind, form);
  problem.relu = relu;
  const Shape a_shape = kind == Kind::GradInput ? problem.y : problem.x;
  const Shape b_shape = kind == Kind::GradWeight ? problem.y : problem.w;
  CAPTURE(to_string(problem.x));
  CAPTURE(to_string(problem.w));
  CAPTURE(int(kind));
  REQUIRE(is_small(problem));
  const test::LoweredTensor a = test::lowered_noise(a_shape, 1), b = test::lowered_noise(b_shape, 2);
  const bool biased = kind == Kind::ForwardBias;
  const DeviceBuffer bias = test::noise({form.filters}, 3);
  ConvolutionProblem exact = problem;
  exact.type = exact.output_type = DataType::Float32;
  DeviceBuffer expected = test::room_for(problem.output_shape());
  const auto* bias_data = biased ? static_cast<const float*>(bias.data()) : nullptr;
  kPlainLoopsEngine.run(
      exact,
      {.multiprocessors = 132, .a = a.exact.data(), .b = b.exact.data(), .bias = bias_data, .result = expected.data()});
  std::vector<float> right = test::content(expected, problem.output_shape());
  if (relu) std::for_each(right.begin(), right.end(), [](float& value) { value = std::max(value, 0.0f); });
  const int64_t pixels = kind == Kind::GradWeight ? form.images * problem.y[2] * problem.y[3] : 1;
  for (const int processors : {1, 7, 132}) {  // which says how many rows a tile has
    CAPTURE(processors);
    const DeviceBuffer workspace(kSmallEngine.workspace(problem, processors));
    std::vector<float> results[2];
    for (std::vector<float>& result : results) {
      DeviceBuffer found = test::room_for(problem.output_shape());
      kSmallEngine.run(problem, {.multiprocessors = processors,
                                 .a = a.lowered.data(),
                                 .b = b.lowered.data(),
                                 .bias = bias_data,
                                 .result = found.data(),
                                 .workspace = workspace.data()});
      result = test::content(found, problem.output_shape(), problem.output_type);
    }
    CHECK(results[0] == results[1]);
    CHECK(test::worst_share(results[0], right, pixels) < 1);
  }
}

}  // namespace

TEST_CASE("CUDA: convolutions of small images agree with plain loops, with the same bits each time") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    MESSAGE("SKIP: no GPU");
    return;
  }
  const std::vector<Form> forms = {
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
  for (const Form& form : forms) {
    for (const Kind kind : {Kind::Forward, Kind::ForwardBias, Kind::GradInput, Kind::GradWeight}) {
      check(kind, form, kind == Kind::ForwardBias, part);
    }
  }
  for (const Form& form : {Form{3, 3, 31, 29, 20, 5, 2, 1, 2, 2}, Form{2, 24, 15, 16, 40, 3, 3, 1, 1, 0}}) {
    for (const Kind kind : {Kind::Forward, Kind::GradWeight}) check(kind, form, false, part);
  }
}

TEST_CASE("which convolutions are of small images") {
  const ConvolutionProblem good = problem_of(Kind::Forward, {2, 20, 12, 12, 50, 5});
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
  const ConvolutionProblem strided = problem_of(Kind::GradInput, {2, 20, 12, 12, 50, 5, 2});
  CHECK_FALSE(is_small(strided));
}

}  // namespace conv_small_cuda_test
