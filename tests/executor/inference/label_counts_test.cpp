// SPDX-License-Identifier: Apache-2.0

// Rates of labels at thresholds against scikit-learn's recall_score, precision_score and roc_curve of the same numbers.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "executor/inference/label_counts.h"

using namespace arbalest;

namespace label_counts_test {
namespace {

constexpr float kLogits[] = {2.0f, -1.5f, 0.3f, 0.7f, -0.2f, 1.1f, -3.0f, 0.1f, -0.6f, 0.3f, 4.0f, -1.0f};
constexpr float kLabels[] = {1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1};

// The same scores for two labels, of which the second is the first one's contrary.
LabelCounts two_labels() {
  LabelCounts counts(2);
  for (size_t i = 0; i < std::size(kLogits); ++i) {
    const float logits[] = {kLogits[i], kLogits[i]}, targets[] = {kLabels[i], 1 - kLabels[i]};
    counts.add(logits, targets);
  }
  return counts;
}

}  // namespace

TEST_CASE("labels' sensitivity, specificity and precision at a threshold") {
  const LabelCounts counts = two_labels();
  CHECK(counts.labels() == 2);
  CHECK(counts.positive(0) == 6);
  CHECK(counts.negative(0) == 6);
  for (const LabelRates& expected : {LabelRates{0.5, 2.0 / 3, 0.5, 4.0 / 7}, LabelRates{0.3, 5.0 / 6, 1.0 / 3, 5.0 / 9},
                                     LabelRates{0.7, 0.5, 1, 1}}) {
    const LabelRates found = counts.at(0, expected.threshold);
    CHECK(found.sensitivity == doctest::Approx(expected.sensitivity));
    CHECK(found.specificity == doctest::Approx(expected.specificity));
    CHECK(found.precision == doctest::Approx(expected.precision));
  }
  // A half is not above a half.
  LabelCounts even(1);
  const float zero[] = {0}, one[] = {1};
  even.add(zero, one);
  CHECK(even.at(0, 0.5).sensitivity == 0);
}

TEST_CASE("the threshold with the greatest sum of sensitivity and specificity lies halfway to the next score") {
  const LabelRates best = two_labels().best(0);
  CHECK(best.threshold == doctest::Approx(0.7092239397937532));
  CHECK(best.sensitivity == 0.5);
  CHECK(best.specificity == 1);
  CHECK(best.precision == 1);
}

TEST_CASE("scores whose probabilities are all 1 are kept apart where the best threshold is counted") {
  LabelCounts counts(1);
  const auto add = [&](float logit, float target) { counts.add({&logit, 1}, {&target, 1}); };
  for (const float logit : {60.0f, 61.0f, 62.0f}) add(logit, 1);
  for (const float logit : {50.0f, 51.0f}) add(logit, 0);
  const LabelRates best = counts.best(0);
  CHECK(best.threshold == 1);
  CHECK(best.sensitivity == 1);
  CHECK(best.specificity == 1);
  CHECK(best.precision == 1);
}

TEST_CASE("labels that are unknown do not count, nor scores that are no numbers") {
  LabelCounts counts(1);
  const auto add = [&](float logit, float target) { counts.add({&logit, 1}, {&target, 1}); };
  add(1, 1);
  add(1, -1);
  add(std::numeric_limits<float>::quiet_NaN(), 1);
  CHECK(counts.positive(0) == 1);
  CHECK(counts.negative(0) == 0);
  CHECK(std::isnan(counts.at(0, 0.5).specificity));
  CHECK(std::isnan(counts.best(0).threshold));
  add(-1, 0);
  CHECK(counts.best(0).threshold == doctest::Approx(0.5));

  const uint8_t bytes[] = {1, 0, 255};
  CHECK(targets_of(reinterpret_cast<const std::byte*>(bytes), DataType::Uint8, 3) == std::vector<float>{1, 0, -1});
  const float floats[] = {1, 0.25f, -1, std::nanf("")};
  CHECK(targets_of(reinterpret_cast<const std::byte*>(floats), DataType::Float32, 4) ==
        std::vector<float>{1, 0.25f, -1, -1});
}

}  // namespace label_counts_test
