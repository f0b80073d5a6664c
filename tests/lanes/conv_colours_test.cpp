// SPDX-License-Identifier: Apache-2.0

// The kernels for convolutions of few channels, on the CPU.

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "tests/lanes/lanes.h"
#include "tests/lanes/numbers.h"
#include "tests/ops/conv/convolution_form.h"
// After what takes the place of CUDA's words.
#include "ops/conv/few/conv_colours_forms.cuh"

using namespace arbalest;
using namespace arbalest::cuda;

namespace conv_colours_test {
namespace {

using Kind = ConvolutionProblem::Kind;
using T = __nv_bfloat16;

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

// The sums that define the convolution, or its filter's gradient, and how each began.
std::vector<float> by_definition(const ConvolutionProblem& p, const std::vector<T>& x, const std::vector<T>& w,
                                 const std::vector<T>& y, const std::vector<float>& bias) {
  const bool gradient = p.kind == Kind::GradWeight;
  const int64_t colours = p.x[1], made = p.y[1], high = p.w[2], wide = p.w[3];
  std::vector<float> sums(size_t(element_count(gradient ? p.w : p.y)));
  for (int64_t pixel = 0; pixel < p.y[0] * p.y[2] * p.y[3]; ++pixel) {
    const int64_t image = pixel / (p.y[2] * p.y[3]), i = pixel / p.y[3] % p.y[2], j = pixel % p.y[3];
    for (int64_t k = 0; k < made; ++k) {
      const size_t of_y = size_t(pixel * made + k);
      if (p.kind == Kind::ForwardBias) sums[of_y] = bias[size_t(k)];
      for (int64_t at = 0; at < high * wide * colours; ++at) {
        const int64_t tap = at / colours, row = i * p.stride[0] + tap / wide - p.pad_begin[0],
                      column = j * p.stride[1] + tap % wide - p.pad_begin[1];
        if (row < 0 || column < 0 || row >= p.x[2] || column >= p.x[3]) continue;
        const size_t of_x = size_t(((image * p.x[2] + row) * p.x[3] + column) * colours + at % colours);
        const size_t of_w = size_t(k * high * wide * colours + at);
        (gradient ? sums[of_w] : sums[of_y]) += float(x[of_x]) * float(gradient ? y[of_y] : w[of_w]);
      }
      if (p.relu && !gradient) sums[of_y] = std::max(sums[of_y], 0.0f);
    }
  }
  return sums;
}

// How many results of the kernel are not those of the definition.
size_t differing(const ConvolutionProblem& p, int multiprocessors) {
  const auto of = [](const Shape& shape, uint32_t seed) { return lanes::numbers(size_t(element_count(shape)), seed); };
  const std::vector<T> x = of(p.x, 1), w = of(p.w, 2), y = of(p.y, 3), starts = of({p.y[1]}, 4);
  const std::vector<float> bias(starts.begin(), starts.end());
  const bool gradient = p.kind == Kind::GradWeight;
  const ColoursTiling t = colours_tiling(p, multiprocessors);
  const int shared = colours_shared_bytes(t, gradient);
  std::vector<float> found(size_t(element_count(p.w)));
  REQUIRE(with_colours_form(t, [&](auto form) {
    using F = decltype(form);
    if (gradient) {
      std::vector<float> partials(size_t(t.blocks) * found.size(), kUnwritten);
      lanes::launch(dim3(unsigned(t.blocks)), kThreads, shared, [&] {
        colours_gradient_kernel<F::kSteps, F::kJ, F::kParities>(t, x.data(), y.data(), partials.data());
      });
      for (size_t i = 0; i < partials.size(); ++i) found[i % found.size()] += partials[i];
    } else {
      std::vector<T> made(size_t(element_count(p.y)), __float2bfloat16(kUnwritten));
      lanes::launch(dim3(unsigned(t.blocks)), kThreads, shared, [&] {
        colours_kernel<F::kSteps, F::kJ, F::kParities>(
            t, x.data(), w.data(), p.kind == Kind::ForwardBias ? bias.data() : nullptr, p.relu, made.data());
      });
      found.assign(made.begin(), made.end());
    }
  }));
  const std::vector<float> expected = by_definition(p, x, w, y, bias);
  REQUIRE(found.size() == expected.size());
  size_t differ = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float same = gradient ? expected[i] : float(__float2bfloat16(expected[i]));
    differ += found[i] != same ? 1 : 0;  // NaN differs
  }
  return differ;
}

}  // namespace

TEST_CASE("kernels for convolutions of few channels make the sums that define them") {
  using Form = test::ConvolutionForm;
  for (const Kind kind : {Kind::Forward, Kind::ForwardBias, Kind::GradWeight}) {
    for (const Form& form : {
             Form{2, 3, 16, 16, 24, 3, 2, 1, 1, 1},  // windows begin at odd numbers, rows of 16 bytes
             Form{1, 3, 9, 16, 16, 3, 1, 1, 1, 1},   // every other one at an odd number
             Form{1, 3, 7, 9, 8, 3, 1, 1, 1, 1},     // an odd width, with a column that is not there
             Form{2, 1, 12, 12, 20, 5, 1, 1, 0, 0},  // LeNet's
             Form{1, 1, 5, 7, 32, 3, 1, 1, 1, 1},    // rows of odd numbers
             Form{1, 3, 12, 20, 40, 4, 4, 1, 0, 0},  // patches, two warps for the channels
             Form{1, 2, 9, 10, 64, 3, 2, 1, 0, 1},
             Form{1, 4, 6, 7, 72, 3, 1, 1, 1, 1},  // one of four warps has no channel
             Form{1, 3, 8, 11, 136, 3, 2, 1, 1, 1},
             Form{1, 3, 11, 10, 16, 5, 2, 1, 2, 2},  // three to five steps
             Form{1, 3, 9, 9, 24, 5, 1, 1, 2, 2},
             Form{3, 3, 1, 1, 8, 1, 1, 1, 0, 0},
         }) {
      const ConvolutionProblem problem = form.problem(kind);
      CAPTURE(problem.key());
      for (const int multiprocessors : {1, 40}) CHECK(differing(problem, multiprocessors) == 0);
    }
  }
}

TEST_CASE("kernels for convolutions of few channels are right for problems at random") {
  uint32_t state = 7;
  const auto draw = [&](int64_t least, int64_t most) {
    state = state * 1664525 + 1013904223;
    return least + int64_t(state >> 16) % (most - least + 1);
  };
  int tried = 0;
  while (tried < 150) {
    test::ConvolutionForm form{draw(1, 3),     draw(1, 4), draw(1, 14), draw(1, 22),
                               8 * draw(1, 9), draw(1, 5), draw(1, 4)};
    form.pad_begin = draw(0, 4);
    form.pad_end = draw(0, 3);
    const Kind kinds[] = {Kind::Forward, Kind::ForwardBias, Kind::GradWeight};
    const ConvolutionProblem problem = form.problem(kinds[draw(0, 2)]);
    const int multiprocessors = int(draw(1, 4));
    if (element_count(problem.y) <= 0 || problem.y[2] <= 0 || problem.y[3] <= 0) continue;
    if (colours_steps(colours_tiling(problem, multiprocessors)) > 5) continue;
    CAPTURE(problem.key());
    CHECK(differing(problem, multiprocessors) == 0);
    ++tried;
  }
}

TEST_CASE("kernels for convolutions of few channels do not mix up rows and columns") {
  for (const Kind kind : {Kind::Forward, Kind::GradWeight}) {
    ConvolutionProblem problem = test::ConvolutionForm{1, 3, 8, 16, 16, 3, 1, 1, 0, 0}.problem(kind);
    problem.w = {16, 3, 2, 5};
    problem.y = {1, 16, 5, 9};
    problem.stride = {2, 2};
    problem.pad_begin = {2, 3};
    CAPTURE(problem.key());
    CHECK(differing(problem, 2) == 0);
  }
}

TEST_CASE("a number that is none reaches the pixels whose window it is in, and no others") {
  for (const int64_t stride : {1, 2}) {
    const ConvolutionProblem p = test::ConvolutionForm{1, 3, 8, 16, 16, 3, stride, 1, 1, 1}.problem(Kind::Forward);
    const int64_t row = 3, column = 5;
    const T one = __float2bfloat16(1.0f);
    std::vector<T> x(size_t(element_count(p.x)), one), w(size_t(element_count(p.w)), one),
        y(size_t(element_count(p.y)));
    for (int64_t colour = 0; colour < 3; ++colour) {
      x[size_t((row * 16 + column) * 3 + colour)] = __float2bfloat16(kUnwritten);
    }
    const ColoursTiling t = colours_tiling(p, 1);
    with_colours_form(t, [&](auto form) {
      using F = decltype(form);
      lanes::launch(dim3(unsigned(t.blocks)), kThreads, colours_shared_bytes(t, false), [&] {
        colours_kernel<F::kSteps, F::kJ, F::kParities>(t, x.data(), w.data(), nullptr, false, y.data());
      });
    });
    for (int64_t pixel = 0; pixel < p.y[2] * p.y[3]; ++pixel) {
      const int64_t i = pixel / p.y[3] * stride, j = pixel % p.y[3] * stride;
      const bool near = std::abs(i - row) <= 1 && std::abs(j - column) <= 1;
      for (int64_t k = 0; k < 16; ++k) CHECK(std::isnan(float(y[size_t(pixel * 16 + k)])) == near);
    }
  }
}

}  // namespace conv_colours_test
