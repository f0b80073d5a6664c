// SPDX-License-Identifier: Apache-2.0

// Convolutions of few channels folded into ones of more. Compiled only with CUDA.

#include <doctest/doctest.h>

#include "base/error.h"
#include "ops/conv/conv_fold.h"
#include "ops/conv/grouped/conv_direct.h"
#include "tests/ops/lowered_tensor.h"

using namespace arbalest;
using test::content;
using test::noise;
using test::room_for;

namespace conv_fold_cuda_test {
namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kProcessors = 4;

struct Extents {
  int64_t channels, height, width, kernel, pad, stride;
};

void convolve(const ConvolutionProblem& problem, const DeviceBuffer& a, const DeviceBuffer& b, DeviceBuffer& result) {
  kPlainLoopsEngine.run(problem,
                        {.multiprocessors = kProcessors, .a = a.data(), .b = b.data(), .result = result.data()});
}

ConvolutionProblem problem_of(Kind kind, const Extents& e) {
  const auto out = [&](int64_t extent) { return (extent + 2 * e.pad - e.kernel) / e.stride + 1; };
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.x = {3, e.channels, e.height, e.width};
  problem.w = {5, e.channels, e.kernel, e.kernel};
  problem.y = {3, 5, out(e.height), out(e.width)};
  problem.stride = {e.stride, e.stride};
  problem.dilation = {1, 1};
  problem.pad_begin = problem.pad_end = {e.pad, e.pad};
  return problem;
}

void check_close(const std::vector<float>& found, const std::vector<float>& expected) {
  REQUIRE(found.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::abs(double(found[i]) - double(expected[i]));
    worst = difference <= worst ? worst : difference;  // NaN too
  }
  CHECK(worst < 1e-4);
}

constexpr auto kFloat = DataType::Float32;

}  // namespace

TEST_CASE("CUDA: a folded convolution is the convolution") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    MESSAGE("SKIP: no GPU");
    return;
  }
  const std::vector<Extents> all = {{3, 32, 24, 7, 3, 2},   {3, 33, 31, 7, 3, 2}, {1, 17, 20, 3, 1, 2},
                                    {3, 16, 16, 4, 1, 2},   {2, 15, 18, 2, 0, 2}, {3, 20, 22, 3, 0, 2},
                                    {3, 12, 13, 3, 1, 1},   {1, 11, 9, 5, 2, 1},  {3, 21, 19, 3, 1, 3},
                                    {3, 33, 32, 16, 0, 16}, {3, 17, 16, 4, 0, 4}};
  for (const Extents& extents : all) {
    const int64_t folded_channels = extents.stride * extents.stride * extents.channels;
    for (const auto& [by, wide] : {std::pair<int, int64_t>{1, 4},
                                   {1, 8},
                                   {int(extents.stride), folded_channels},
                                   {int(extents.stride), (folded_channels + 7) / 8 * 8}}) {
      if (wide % 4 != 0) continue;  // no pack
      CAPTURE(extents.kernel);
      CAPTURE(extents.pad);
      CAPTURE(by);
      CAPTURE(wide);
      const ConvolutionProblem forward = problem_of(Kind::Forward, extents);
      ConvolutionProblem folded = forward;
      Folding folding;
      REQUIRE(fold(folded, by, wide, folding));
      const DeviceBuffer x = noise(forward.x, 1), w = noise(forward.w, 2), dy = noise(forward.y, 3);
      DeviceBuffer folded_x = room_for(folded.x), folded_w = room_for(folded.w);
      fold_image(nullptr, kProcessors, folding, kFloat, x.data(), folded_x.data());
      fold_filter(nullptr, kProcessors, folding, kFloat, w.data(), folded_w.data());
      DeviceBuffer y = room_for(forward.y), folded_y = room_for(forward.y);
      convolve(forward, x, w, y);
      convolve(folded, folded_x, folded_w, folded_y);
      check_close(content(folded_y, forward.y), content(y, forward.y));

      ConvolutionProblem gradient = forward, folded_gradient = folded;
      gradient.kind = folded_gradient.kind = Kind::GradWeight;
      DeviceBuffer dw = room_for(forward.w), folded_dw = room_for(folded.w), unfolded_dw = room_for(forward.w);
      convolve(gradient, x, dy, dw);
      convolve(folded_gradient, folded_x, dy, folded_dw);
      unfold_filter(nullptr, kProcessors, folding, kFloat, folded_dw.data(), kFloat, unfolded_dw.data());
      check_close(content(unfolded_dw, forward.w), content(dw, forward.w));
    }
  }
}

TEST_CASE("CUDA: colours folded by two in bfloat16 are what they are in float") {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    MESSAGE("SKIP: no GPU");
    return;
  }
  for (const Extents& extents : {Extents{3, 32, 24, 7, 3, 2}, {3, 33, 30, 7, 3, 2}, {3, 17, 21, 7, 2, 2}}) {
    CAPTURE(extents.width);
    ConvolutionProblem folded = problem_of(Kind::Forward, extents);
    const test::LoweredTensor x = test::lowered_noise(folded.x, 1);
    Folding folding;
    REQUIRE(fold(folded, 2, 16, folding));
    const DeviceBuffer exact = room_for(folded.x), lowered = room_for(folded.x);
    fold_image(nullptr, kProcessors, folding, kFloat, x.exact.data(), exact.data());
    fold_image(nullptr, kProcessors, folding, DataType::Bfloat16, x.lowered.data(), lowered.data());
    CHECK(test::content(lowered, folded.x, DataType::Bfloat16) == content(exact, folded.x));
  }
}

TEST_CASE("what cannot be folded is left as it is") {
  const auto refused = [](ConvolutionProblem problem, int by, int64_t wide) {
    const ConvolutionProblem before = problem;
    Folding folding;
    return !fold(problem, by, wide, folding) && problem.key() == before.key();
  };
  const ConvolutionProblem good = problem_of(Kind::Forward, {3, 16, 16, 3, 1, 2});
  ConvolutionProblem grouped = good, dilated = good, uneven = good;
  grouped.w[1] = 1;
  dilated.dilation = {2, 2};
  uneven.pad_begin = {1, 0};
  CHECK(refused(grouped, 1, 8));
  CHECK(refused(dilated, 2, 16));
  CHECK(refused(uneven, 2, 16));
  CHECK(refused(good, 3, 32));  // not the stride
  CHECK(refused(good, 2, 8));   // too few channels
}

}  // namespace conv_fold_cuda_test
