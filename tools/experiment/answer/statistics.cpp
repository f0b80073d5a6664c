// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace arbalest {
namespace {

constexpr int kSamples = 2000;
constexpr uint64_t kSeed = 20;  // any; a fixed one makes the same table of the same measurements

// A median of as many values, drawn with replacement.
class Bootstrap {
 public:
  explicit Bootstrap(uint64_t stream) : key_(random_key(kSeed, stream)) {}

  double median(const std::vector<double>& values) {
    std::vector<double> drawn;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t word = philox(key_, 0, at_++).word[0];
      drawn.push_back(values[below(word, uint32_t(values.size()))]);
    }
    return median_of(std::move(drawn));
  }

 private:
  const uint64_t key_;
  uint64_t at_ = 0;
};

// The middle 95 %; none if it is not finite.
std::optional<Confidence> middle(std::vector<double> drawn) {
  std::sort(drawn.begin(), drawn.end());
  const size_t cut = drawn.size() / 40;
  const Confidence interval = {drawn[cut], drawn[drawn.size() - 1 - cut]};
  if (!std::isfinite(interval.low) || !std::isfinite(interval.high)) return std::nullopt;
  return interval;
}

size_t outliers_of(const std::vector<double>& values, double median) {
  constexpr double kScale = 1.4826;  // of a normal distribution's MAD to its deviation
  std::vector<double> apart;
  for (const double value : values) apart.push_back(std::abs(value - median));
  const double most = 3 * kScale * median_of(apart);
  if (most == 0) return 0;  // most values are the same, and tell nothing of how far others may lie
  return size_t(std::count_if(apart.begin(), apart.end(), [&](double distance) { return distance > most; }));
}

}  // namespace

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<double> scaled(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

Estimate estimate(const std::vector<double>& values) {
  Estimate found{.median = median_of(values), .interval = {}, .count = values.size(), .outliers = 0};
  if (values.size() < kFewest) return found;
  Bootstrap bootstrap(0);
  std::vector<double> medians;
  for (int i = 0; i < kSamples; ++i) medians.push_back(bootstrap.median(values));
  found.interval = middle(std::move(medians));
  if (std::isfinite(found.median)) found.outliers = outliers_of(values, found.median);
  return found;
}

std::optional<Estimate> ratio(const std::vector<double>& over, const std::vector<double>& under) {
  const double a = median_of(over), b = median_of(under);
  if (!std::isfinite(a) || !std::isfinite(b) || b == 0) return std::nullopt;
  Estimate found{.median = a / b, .interval = {}, .count = std::min(over.size(), under.size()), .outliers = 0};
  if (found.count < kFewest) return found;
  Bootstrap of_over(1), of_under(2);
  std::vector<double> ratios;
  for (int i = 0; i < kSamples; ++i) {
    const double top = of_over.median(over), bottom = of_under.median(under);
    ratios.push_back(std::isinf(top) && std::isinf(bottom) ? 1 : top / bottom);
  }
  found.interval = middle(std::move(ratios));
  return found;
}

Difference difference(const Estimate& ratio) {
  if (!ratio.interval) return Difference::Unclear;
  if (ratio.interval->low > 1) return Difference::Above;
  return ratio.interval->high < 1 ? Difference::Below : Difference::Unclear;
}

double trimmed_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  if (values.size() >= 3) values = {values.begin() + 1, values.end() - 1};
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

double chance_above(const std::vector<double>& values, double bound) {
  const double count = double(values.size()), freedom = count - 1;
  if (values.size() < 2) return 1;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  if (squares == 0) return mean > bound ? 0 : 1;
  const double t = (mean - bound) / std::sqrt(squares / freedom / count);
  // The density's integral from 0 to |t| by Simpson's rule, in the angle of t, which is finite: t = √freedom · tan(a).
  const double angle = std::atan(std::abs(t) / std::sqrt(freedom));
  constexpr int kSteps = 1000;
  double sum = 0;
  for (int i = 0; i <= kSteps; ++i) {
    const double weight = i == 0 || i == kSteps ? 1 : i % 2 == 1 ? 4 : 2;
    sum += weight * std::pow(std::cos(angle * i / kSteps), freedom - 1);
  }
  const double scale = std::exp(std::lgamma((freedom + 1) / 2) - std::lgamma(freedom / 2)) / std::sqrt(M_PI);
  const double inside = scale * sum * angle / kSteps / 3;
  return t > 0 ? std::max(0.0, 0.5 - inside) : 0.5 + inside;
}

std::optional<Confidence> mean_interval(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
  double furthest = 0;
  for (const double value : values) furthest = std::max(furthest, std::abs(value - mean));
  if (furthest == 0) return std::nullopt;
  // Two values may lie 12.7 times their distance from the mean within the bounds.
  double near = 0, far = 20 * furthest;
  for (int halvings = 0; halvings < 60; ++halvings) {
    const double middle = (near + far) / 2;
    (chance_above(values, mean - middle) > 0.025 ? near : far) = middle;
  }
  return Confidence{mean - far, mean + far};
}

}  // namespace arbalest
