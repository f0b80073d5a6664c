// SPDX-License-Identifier: Apache-2.0

// Batch norms in one launch, on the CPU, against sums in double.

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "tests/lanes/lanes.h"
#include "tests/lanes/numbers.h"
// After what takes the place of CUDA's words.
#include "ops/norm/batch_norm_at_once.cuh"

using namespace arbalest;
using namespace arbalest::cuda;

namespace batch_norm_at_once_test {
namespace {

struct Case {
  int64_t rows, channels;
  int multiprocessors;
};

// Packs of eight and of four, one slice and several, the last of which is not full, one chunk and eight.
const std::vector<Case> kCases = {{600, 116, 132}, {1100, 232, 132}, {40, 8, 132},  {700, 24, 8},
                                  {1, 64, 132},    {3, 4, 132},      {2000, 64, 4}, {257, 520, 132}};

std::vector<float> floats(size_t count, uint32_t seed, float scale, float shift) {
  std::vector<float> made;
  for (const __nv_bfloat16 each : lanes::numbers(count, seed)) made.push_back(shift + scale * float(each));
  return made;
}

// A norm's operands. The mean of x is far from 0.
struct Norm {
  Case of;
  size_t size = size_t(of.rows * of.channels), channels = size_t(of.channels);
  std::vector<__nv_bfloat16> x = lanes::numbers(size, 1);
  std::vector<float> scale = floats(channels, 2, 0.125f, 1), bias = floats(channels, 3, 0.25f, 0.1f);
  std::vector<float> running_mean = floats(channels, 4, 1, 0), running_var = floats(channels, 5, 0.1f, 1);
  std::vector<double> mean = std::vector<double>(channels), inv_std = mean, variance = mean;
  static constexpr float kEpsilon = 1e-3f;

  explicit Norm(const Case& c) : of(c) {
    for (__nv_bfloat16& each : x) each = __float2bfloat16(float(each) + 20);
    for (size_t i = 0; i < size; ++i) mean[i % channels] += double(x[i]) / double(of.rows);
    for (size_t i = 0; i < size; ++i) variance[i % channels] += std::pow(double(x[i]) - mean[i % channels], 2);
    for (size_t c = 0; c < channels; ++c) inv_std[c] = 1 / std::sqrt(variance[c] / double(of.rows) + kEpsilon);
  }
  double normalized(size_t i) const {
    const size_t c = i % channels;
    return (double(x[i]) - mean[c]) * inv_std[c] * double(scale[c]) + double(bias[c]);
  }
  template <typename Kernel>
  void launch(const Kernel& kernel) const {
    const int width = of.channels % 8 == 0 ? 8 : 4;
    const Columns columns = at_once_columns(of.rows, of.channels, width, 2, of.multiprocessors);
    REQUIRE(columns.chunks <= kMostOfCluster);
    lanes::launch(
        columns.grid(), kThreads, kSliceColumns * int(sizeof(Partial)),
        [&] {
          width == 8 ? kernel(std::integral_constant<int, 8>{}, columns)
                     : kernel(std::integral_constant<int, 4>{}, columns);
        },
        columns.chunks);
  }
};

bool near(double found, double expected, double error) {
  return std::abs(found - expected) <= error * std::max(1.0, std::abs(expected));
}

constexpr double kBfloat16 = 1.0 / 256, kFloat = 2e-5;

}  // namespace

TEST_CASE("batch norms in one launch normalise, and store their statistics") {
  for (const Case& of : kCases) {
    CAPTURE(of.rows);
    CAPTURE(of.channels);
    const Norm norm(of);
    const auto residual = lanes::numbers(norm.size, 6);
    std::vector<__nv_bfloat16> y(norm.size), plain(norm.size);
    std::vector<float> means(norm.channels, NAN), vars = means, saved_means = means, saved_inv_stds = means;
    std::vector<float> alone_means = means, alone_inv_stds = means;
    const auto statistics = [&](std::vector<float>* new_mean, std::vector<float>* new_var,
                                std::vector<float>& saved_mean, std::vector<float>& saved_inv_std) {
      return Statistics{norm.scale.data(),
                        norm.bias.data(),
                        norm.running_mean.data(),
                        norm.running_var.data(),
                        new_mean != nullptr ? new_mean->data() : nullptr,
                        new_var != nullptr ? new_var->data() : nullptr,
                        saved_mean.data(),
                        saved_inv_std.data(),
                        Norm::kEpsilon,
                        0.25f,
                        1};
    };
    const Statistics all = statistics(&means, &vars, saved_means, saved_inv_stds);
    norm.launch([&](auto width, const Columns& columns) {
      normalize_at_once_kernel<width.value, true, true>(columns, all, norm.x.data(), residual.data(), y.data());
    });
    norm.launch([&](auto width, const Columns& columns) {
      normalize_at_once_kernel<width.value, false, false, __nv_bfloat16>(columns, all, norm.x.data(), nullptr,
                                                                         plain.data());
    });
    const Statistics alone = statistics(nullptr, nullptr, alone_means, alone_inv_stds);
    norm.launch([&](auto width, const Columns& columns) {
      statistics_at_once_kernel<width.value>(columns, alone, norm.x.data());
    });
    int64_t wrong = 0;
    for (size_t i = 0; i < norm.size; ++i) {
      wrong += near(double(plain[i]), norm.normalized(i), kBfloat16) ? 0 : 1;
      wrong += near(double(y[i]), std::max(0.0, norm.normalized(i) + double(residual[i])), kBfloat16) ? 0 : 1;
    }
    CHECK(wrong == 0);
    for (size_t c = 0; c < norm.channels; ++c) {
      const double var = norm.variance[c] / std::max(1.0, double(of.rows) - 1);
      wrong += near(saved_means[c], norm.mean[c], kFloat) && alone_means[c] == saved_means[c] ? 0 : 1;
      wrong += near(saved_inv_stds[c], norm.inv_std[c], kFloat) && alone_inv_stds[c] == saved_inv_stds[c] ? 0 : 1;
      wrong += near(means[c], 0.75 * double(norm.running_mean[c]) + 0.25 * norm.mean[c], kFloat) ? 0 : 1;
      wrong += near(vars[c], 0.75 * double(norm.running_var[c]) + 0.25 * var, kFloat) ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("gradients of batch norms in one launch are those of the formula") {
  for (const Case& of : kCases) {
    CAPTURE(of.rows);
    CAPTURE(of.channels);
    const Norm norm(of);
    const auto dy = lanes::numbers(norm.size, 7), dy2 = lanes::numbers(norm.size, 8), y = lanes::numbers(norm.size, 9);
    const std::vector<float> mean(norm.mean.begin(), norm.mean.end()),
        inv_std(norm.inv_std.begin(), norm.inv_std.end());
    const auto check = [&](auto mask, auto two) {
      CAPTURE(int(mask.value));
      std::vector<__nv_bfloat16> dx(norm.size), in_place = norm.x, kept = dy;
      std::vector<float> dscale(norm.channels, NAN), dbias = dscale;
      const auto run = [&](const __nv_bfloat16* dy_at, __nv_bfloat16* kept_at, std::vector<__nv_bfloat16>& to) {
        const GradientOf<__nv_bfloat16> from = {dy_at,
                                                two.value ? dy2.data() : nullptr,
                                                &to == &in_place ? in_place.data() : norm.x.data(),
                                                y.data(),
                                                mean.data(),
                                                inv_std.data(),
                                                norm.scale.data(),
                                                norm.bias.data()};
        norm.launch([&](auto width, const Columns& columns) {
          gradient_at_once_kernel<width.value, mask.value, two.value>(columns, from, to.data(), kept_at, dscale.data(),
                                                                      dbias.data());
        });
      };
      run(dy.data(), nullptr, in_place);  // dX takes the place of X
      run(kept.data(), kept.data(), dx);  // g takes the place of dY
      std::vector<double> g(norm.size), sum(norm.channels), scaled = sum;
      for (size_t i = 0; i < norm.size; ++i) {
        const size_t c = i % norm.channels;
        g[i] = double(dy[i]) + (two.value ? double(dy2[i]) : 0);
        if (mask.value == Mask::Y && !(double(y[i]) > 0)) g[i] = 0;
        if (mask.value == Mask::X) {
          const float gain = norm.scale[c] * inv_std[c];
          if (!(normalized(float(norm.x[i]), mean[c], gain, norm.bias[c]) > 0)) g[i] = 0;
        }
        sum[c] += g[i];
        scaled[c] += g[i] * (double(norm.x[i]) - norm.mean[c]) * norm.inv_std[c];
      }
      int64_t wrong = 0;
      for (size_t i = 0; i < norm.size; ++i) {
        const size_t c = i % norm.channels;
        const double x = (double(norm.x[i]) - norm.mean[c]) * norm.inv_std[c], rows = double(of.rows);
        const double expected = double(norm.scale[c]) * norm.inv_std[c] * (g[i] - sum[c] / rows - x * scaled[c] / rows);
        // A norm of few rows multiplies by up to 1/√ε what rounds.
        wrong += std::abs(double(dx[i]) - expected) <= kBfloat16 * std::abs(expected) + 1e-4 * norm.inv_std[c] ? 0 : 1;
        wrong += double(kept[i]) == g[i] && double(in_place[i]) == double(dx[i]) ? 0 : 1;
      }
      CHECK(wrong == 0);
      for (size_t c = 0; c < norm.channels; ++c) {
        wrong += near(dbias[c], sum[c], kFloat) ? 0 : 1;
        wrong += std::abs(double(dscale[c]) - scaled[c]) <= 1e-4 * (1 + double(of.rows) * 1e-2 + std::abs(scaled[c]))
                     ? 0
                     : 1;
      }
      CHECK(wrong == 0);
    };
    check(std::integral_constant<Mask, Mask::None>{}, std::false_type{});
    check(std::integral_constant<Mask, Mask::None>{}, std::true_type{});
    check(std::integral_constant<Mask, Mask::Y>{}, std::false_type{});
    check(std::integral_constant<Mask, Mask::X>{}, std::true_type{});
  }
}

}  // namespace batch_norm_at_once_test
