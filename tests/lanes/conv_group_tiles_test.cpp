// SPDX-License-Identifier: Apache-2.0

// The kernels for convolutions of narrow groups, on the CPU.

#include <doctest/doctest.h>

#include <limits>
#include <utility>
#include <vector>

#include "tests/lanes/lanes.h"
#include "tests/lanes/numbers.h"
#include "tests/ops/conv/convolution_form.h"
// After what takes the place of CUDA's words.
#include "ops/conv/grouped/conv_group_forms.cuh"

using namespace arbalest;
using namespace arbalest::cuda;

namespace {

using Kind = ConvolutionProblem::Kind;
using T = __nv_bfloat16;

// A convolution of 3 × 3 with as many filters as channels, `group` in each group.
ConvolutionProblem problem_of(Kind kind, const Shape& x, int64_t group, int64_t stride = 1, int64_t dilation = 1,
                              int64_t pad_begin = 1, int64_t pad_end = 1) {
  return test::ConvolutionForm{x[0], x[1], x[2], x[3], x[1], 3, stride, dilation, pad_begin, pad_end, group}.problem(
      kind);
}

// The sums that define the convolution, its gradient of images, or that of its filter.
std::vector<float> by_definition(const ConvolutionProblem& p, const std::vector<T>& x, const std::vector<T>& w,
                                 const std::vector<T>& y) {
  const int64_t channels = p.x[1], group = p.w[1];
  std::vector<float> sums(size_t(element_count(p.kind == Kind::GradWeight ? p.w : p.output_shape())));
  const auto at_each_tap = [&](int64_t image, int64_t i, int64_t j, int64_t tap) {
    const int64_t row = i * p.stride[0] + tap / 3 * p.dilation[0] - p.pad_begin[0];
    const int64_t column = j * p.stride[1] + tap % 3 * p.dilation[1] - p.pad_begin[1];
    if (row < 0 || column < 0 || row >= p.x[2] || column >= p.x[3]) return;
    const int64_t from = ((image * p.x[2] + row) * p.x[3] + column) * channels;
    const int64_t to = ((image * p.y[2] + i) * p.y[3] + j) * channels;
    for (int64_t k = 0; k < channels; ++k) {
      for (int64_t c = 0; c < group; ++c) {
        const size_t of_x = size_t(from + k / group * group + c), of_y = size_t(to + k);
        const size_t of_w = size_t((k * 9 + tap) * group + c);
        switch (p.kind) {
          case Kind::GradInput: sums[of_x] += float(y[of_y]) * float(w[of_w]); break;
          case Kind::GradWeight: sums[of_w] += float(y[of_y]) * float(x[of_x]); break;
          default: sums[of_y] += float(x[of_x]) * float(w[of_w]);
        }
      }
    }
  };
  for (int64_t image = 0; image < p.x[0]; ++image) {
    for (int64_t i = 0; i < p.y[2]; ++i) {
      for (int64_t j = 0; j < p.y[3]; ++j) {
        for (int64_t tap = 0; tap < 9; ++tap) at_each_tap(image, i, j, tap);
      }
    }
  }
  return sums;
}

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

template <typename F, GroupWay Way>
std::vector<float> convolved(const ConvolutionProblem& p, int multiprocessors, const T* from, const T* w) {
  const GroupTiling t = tiling_of<F>(p, multiprocessors);
  std::vector<T> made(size_t(element_count(p.output_shape())), __float2bfloat16(kUnwritten));
  lanes::launch(group_grid<F>(t, Way), F::kThreadsOf, shared_of_convolution<typename F::Set>(t),
                [&] { group_convolution_kernel<F::kWidth, F::kGroups, F::kM, Way>(t, from, w, made.data()); });
  return {made.begin(), made.end()};
}

template <typename F>
std::vector<float> filter_gradient(const ConvolutionProblem& p, int multiprocessors, const T* x, const T* dy) {
  const GroupTiling t = tiling_of<F>(p, multiprocessors);
  const size_t count = size_t(element_count(p.w));
  std::vector<float> partials(size_t(t.blocks) * count, kUnwritten), sums(count);
  lanes::launch(group_grid<F>(t, GroupWay::Forward), kThreads, F::Gradient::shared_bytes(t),
                [&] { group_filter_gradient_kernel<F::kWidth, F::kGroups, F::kSplits>(t, x, dy, partials.data()); });
  for (size_t i = 0; i < partials.size(); ++i) sums[i % count] += partials[i];
  return sums;
}

// How many results of the kernel are not those of the definition.
size_t differing(const ConvolutionProblem& p, int multiprocessors) {
  const auto of = [](const Shape& shape, uint32_t seed) { return lanes::numbers(size_t(element_count(shape)), seed); };
  const std::vector<T> x = of(p.x, 1), w = of(p.w, 2), y = of(p.y, 3);
  const std::vector<float> found = with_group_form(p, [&](auto form) {
    using F = decltype(form);
    if (p.kind == Kind::GradWeight) return filter_gradient<F>(p, multiprocessors, x.data(), y.data());
    if (p.kind == Kind::Forward) return convolved<F, GroupWay::Forward>(p, multiprocessors, x.data(), w.data());
    return is_strided_gradient(p) ? convolved<F, GroupWay::StridedGradient>(p, multiprocessors, y.data(), w.data())
                                  : convolved<F, GroupWay::Gradient>(p, multiprocessors, y.data(), w.data());
  });
  const std::vector<float> expected = by_definition(p, x, w, y);
  REQUIRE(found.size() == expected.size());
  size_t differ = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const float same = p.kind == Kind::GradWeight ? expected[i] : float(__float2bfloat16(expected[i]));
    differ += found[i] != same ? 1 : 0;  // NaN differs
  }
  return differ;
}

}  // namespace

TEST_CASE("kernels for convolutions of narrow groups make the sums that define them") {
  for (const Kind kind : {Kind::Forward, Kind::GradInput, Kind::GradWeight}) {
    const std::vector<ConvolutionProblem> problems = {
        // Two groups joined, in sets of four and of one; groups of 8 and of 16, in sets and apart.
        problem_of(kind, {1, 32, 5, 6}, 4),
        problem_of(kind, {2, 24, 5, 5}, 4, 2),
        problem_of(kind, {1, 40, 4, 3}, 8, 2),
        problem_of(kind, {1, 32, 5, 4}, 16, 2),
        problem_of(kind, {1, 48, 4, 4}, 16),
        // Chunks of two taps make a step; tiles of several images; the other widths; images smaller than a filter's
        // row.
        problem_of(kind, {3, 48, 5, 6}, 24),
        problem_of(kind, {2, 48, 6, 7}, 24, 2),
        problem_of(kind, {1, 48, 1, 1}, 24),
        problem_of(kind, {1, 80, 5, 5}, 40, 1, 2, 2, 2),
        problem_of(kind, {1, 96, 4, 3}, 48, 2),
        problem_of(kind, {1, 112, 3, 3}, 56),
        problem_of(kind, {1, 128, 3, 4}, 64, 2),
        // Several tiles of an image and of a block; padding on one side, none, and more than the filter needs.
        problem_of(kind, {1, 64, 20, 33}, 32),
        problem_of(kind, {1, 48, 16, 16}, 24),
        problem_of(kind, {2, 48, 5, 5}, 24, 2, 1, 0, 1),
        problem_of(kind, {1, 48, 4, 5}, 24, 2, 1, 0, 0),
        problem_of(kind, {1, 48, 3, 3}, 24, 1, 1, 2, 2),
    };
    for (const ConvolutionProblem& problem : problems) {
      CAPTURE(problem.key());
      CHECK(differing(problem, 1) == 0);
    }
  }
}

TEST_CASE("kernels for convolutions of narrow groups do not mix up rows and columns") {
  const auto check = [](Kind kind, Shape y, std::vector<int64_t> stride, std::vector<int64_t> dilation,
                        std::vector<int64_t> pad) {
    ConvolutionProblem problem = problem_of(kind, {1, 48, 6, 7}, 24);
    problem.y = std::move(y);
    problem.stride = std::move(stride);
    problem.dilation = std::move(dilation);
    problem.pad_begin = std::move(pad);
    CAPTURE(problem.key());
    CHECK(differing(problem, 1) == 0);
  };
  for (const Kind kind : {Kind::Forward, Kind::GradWeight}) {
    check(kind, {1, 48, 3, 5}, {2, 1}, {1, 2}, {0, 1});
    check(kind, {1, 48, 4, 4}, {1, 2}, {2, 1}, {1, 2});
  }
  check(Kind::GradInput, {1, 48, 4, 6}, {1, 1}, {2, 1}, {1, 0});
  check(Kind::GradInput, {1, 48, 3, 4}, {2, 2}, {1, 1}, {0, 1});
  check(Kind::GradInput, {1, 48, 4, 3}, {2, 2}, {1, 1}, {2, 0});
}

TEST_CASE("lanes notice threads that wait for others that have ended, and rows of matrices that are misplaced") {
  const auto wait = [] {
    if (lanes::thread_index().x > 0) lanes::wait_for_block();
  };
  CHECK_THROWS_AS(lanes::launch(dim3(1), 64, 0, wait), std::logic_error);
  for (const uint32_t address : {0u, 8u, 112u, 128u}) {
    CAPTURE(address);
    const auto load = [&] {
      uint32_t rows[4];
      load_matrices(rows, address);
    };
    if (address % 16 == 0 && address + 16 <= 128) {
      lanes::launch(dim3(1), 32, 128, load);
    } else {
      CHECK_THROWS_AS(lanes::launch(dim3(1), 32, 128, load), std::logic_error);
    }
  }
  // Each thread reads what another one has written.
  std::vector<int> seen(64);
  lanes::launch(dim3(1), 64, 0, [&] {
    static int shared[64];
    const int thread = int(lanes::thread_index().x);
    shared[thread] = thread;
    lanes::wait_for_block();
    seen[size_t(thread)] = shared[63 - thread];
  });
  for (int i = 0; i < 64; ++i) CHECK(seen[size_t(i)] == 63 - i);
}
