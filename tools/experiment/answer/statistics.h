// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of repeated measurements.

#include <cstddef>
#include <optional>
#include <vector>

namespace arbalest {

struct Confidence {
  double low = 0, high = 0;
};

// Fewer values have no interval. That of four would hold the median in 87.5 % of experiments alone, and seven of a
// hundred pairs of alike cells would differ.
inline constexpr size_t kFewest = 5;

// A median of measurements with a bootstrap interval of 95 %. That of five values goes from the least to the greatest:
// it holds the median in 93.75 % of experiments.
struct Estimate {
  double median = 0;
  std::optional<Confidence> interval;  // none: there are fewer than kFewest, or a bound is infinite
  size_t count = 0;
  size_t outliers = 0;  // beyond three scaled MADs, unless those are 0; they count all the same
};

// The interval is that of a bootstrap: 2000 samples with replacement, drawn with a fixed seed. Measurements may be
// infinite. At least one.
Estimate estimate(const std::vector<double>& values);

// The ratio of two medians, each side drawn on its own. None if a median is infinite or that of `under` is 0.
std::optional<Estimate> ratio(const std::vector<double>& over, const std::vector<double>& under);

// Whether a ratio differs from 1: only if its interval excludes 1, and so both sides were measured kFewest times.
enum class Difference { Unclear, Above, Below };
Difference difference(const Estimate& ratio);

double median_of(std::vector<double> values);

// Each value times the factor.
std::vector<double> scaled(std::vector<double> values, double factor);

// The mean without the least and the greatest of three values or more.
double trimmed_mean(std::vector<double> values);

// The probability of a mean so far above the bound, or further, if the true mean were the bound: Student's one-sided
// test. 1 with fewer than two values. Values are finite.
double chance_above(const std::vector<double>& values, double bound);

// The interval of 95 % of the mean, by Student's distribution; none of fewer than two values, or of equal ones, which
// say nothing of how far others lie. Values are finite.
std::optional<Confidence> mean_interval(const std::vector<double>& values);

}  // namespace arbalest
