// SPDX-License-Identifier: Apache-2.0

// Precision, recall, F1 and AUC over labels that may be missing: numbers of scikit-learn 1.9.1 (zero_division=nan).

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;

namespace rates_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kSamples = 12, kColumns = 4;
using Rows = std::vector<std::vector<float>>;

const Rows kScores = {
    {-0.75f, -1.375f, -0.25f, 0.375f},  {1.125f, 0.125f, -0.5f, -0.75f},    {0.75f, 1.625f, 0.25f, -1.25f},
    {-1, 1.625f, 0.25f, -1.75f},        {-0.125f, -1.125f, -0.625f, -0.5f}, {-0.75f, 0.5f, -0.125f, -0.625f},
    {0.375f, 0.875f, -1.625f, -0.25f},  {-1, -0.125f, -1.25f, 0},           {-0.0f, -0.25f, -1, -0.375f},
    {-1.125f, -1.375f, 0.25f, -1.125f}, {1.125f, 0.75f, -2, 0.25f},         {-1.125f, 0, 0, -2}};
const Rows kClasses = {{0}, {0}, {1}, {0}, {0}, {0}, {0}, {0}, {1}, {1}, {0}, {0}};
const Rows kLabels = {{1, 0, 0, 1}, {0, 1, 1, 0}, {0, 1, 0, 1}, {1, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 0, 1},
                      {1, 1, 1, 0}, {0, 1, 0, 0}, {0, 0, 0, 1}, {1, 0, 0, 1}, {0, 1, 0, 1}, {1, 1, 1, 1}};
const Rows kMissing = {{0, 1, 0, 0}, {0, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 1, 0, 0},
                       {1, 0, 1, 0}, {0, 1, 0, 1}, {0, 1, 1, 1}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};

std::vector<double> metric(const char* name, const Rows& scores, const Rows& labels, const Attributes& attributes = {},
                           DataType label_type = DataType::Float32) {
  const Op& op = builtin_ops().get(name);
  const auto samples = int64_t(scores.size());
  const auto columns = int64_t(scores[0].size()), label_columns = int64_t(labels[0].size());
  std::vector<float> rows;
  for (size_t n = 0; n < scores.size(); ++n) {
    rows.insert(rows.end(), scores[n].begin(), scores[n].end());
    rows.insert(rows.end(), labels[n].begin(), labels[n].end());
  }
  Node node;
  node.op = &op;
  node.attributes = attributes;
  return op.metric->finish(node, {{DataType::Float32, {samples, columns}}, {label_type, {samples, label_columns}}},
                           {rows, columns + label_columns});
}

Attributes averaged(const char* average, double threshold = 0.5) {
  return {{"average", average}, {"threshold", threshold}};
}

void check_same(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO(i);
    if (std::isnan(expected[i])) {
      CHECK(std::isnan(found[i]));
    } else {
      CHECK(found[i] == doctest::Approx(expected[i]).epsilon(1e-12));
    }
  }
}

// Labels with `gap` if they are missing.
Rows with_gaps(float gap) {
  Rows labels = kLabels;
  for (size_t n = 0; n < kSamples; ++n) {
    for (size_t c = 0; c < kColumns; ++c) {
      if (kMissing[n][c] != 0) labels[n][c] = gap;
    }
  }
  return labels;
}

}  // namespace

TEST_CASE("precision, recall and F1 of classes") {
  check_same(metric("arbalest.Precision", kScores, kClasses), {0.2375, 0.75, 0.2, 0, 0});
  check_same(metric("arbalest.Recall", kScores, kClasses), {1.0 / 3, 1.0 / 3, 1.0 / 3, kNan, kNan});
  check_same(metric("arbalest.F1", kScores, kClasses), {0.1778846153846154, 0.46153846153846156, 0.25, 0, 0});
  CHECK(metric("arbalest.Precision", kScores, kClasses, averaged("micro"))[0] == doctest::Approx(1.0 / 3));
  CHECK(metric("arbalest.Precision", kScores, kClasses, averaged("weighted"))[0] == doctest::Approx(0.6125));
  CHECK(metric("arbalest.F1", kScores, kClasses, averaged("micro"))[0] == doctest::Approx(1.0 / 3));
  CHECK(metric("arbalest.F1", kScores, kClasses, averaged("weighted"))[0] == doctest::Approx(0.4086538461538462));
}

TEST_CASE("places of a sample are rows of their own, in their order") {
  const Op& op = builtin_ops().get("arbalest.F1");
  std::vector<float> rows;
  for (size_t n = 0; n < kSamples; ++n) {
    rows.insert(rows.end(), kScores[n].begin(), kScores[n].end());
    rows.push_back(kClasses[n][0]);
  }
  const std::vector<double> expected = metric("arbalest.F1", kScores, kClasses);
  for (const int64_t axis : {1, -1}) {
    Node node;
    node.op = &op;
    node.attributes = {{"axis", axis}};
    const Shape scores = axis == 1 ? Shape{3, 4, 2, 2} : Shape{3, 2, 2, 4};
    check_same(op.metric->finish(node, {{DataType::Float32, scores}, {DataType::Int32, {3, 2, 2}}}, {rows, 20}),
               expected);
  }
}

TEST_CASE("precision, recall and F1 of many labels, by a threshold of the probability") {
  const char *precision = "arbalest.Precision", *recall = "arbalest.Recall", *f1 = "arbalest.F1";
  check_same(metric(precision, kScores, kLabels), {0.6041666666666667, 0.25, 0.8333333333333334, 1.0 / 3, 1});
  check_same(metric(recall, kScores, kLabels), {0.3392857142857143, 1.0 / 7, 5.0 / 7, 0.25, 0.25});
  check_same(metric(f1, kScores, kLabels), {0.4091908091908092, 2.0 / 11, 10.0 / 13, 2.0 / 7, 0.4});
  CHECK(metric(precision, kScores, kLabels, averaged("micro"))[0] == doctest::Approx(0.6));
  CHECK(metric(precision, kScores, kLabels, averaged("weighted"))[0] == doctest::Approx(0.6506410256410257));
  CHECK(metric(recall, kScores, kLabels, averaged("micro"))[0] == doctest::Approx(0.34615384615384615));
  CHECK(metric(f1, kScores, kLabels, averaged("weighted"))[0] == doctest::Approx(0.4230846076999924));
  check_same(metric(precision, kScores, kLabels, averaged("macro", 0.7)), {0.5, 0, 1, kNan, kNan});
  check_same(metric(f1, kScores, kLabels, averaged("macro", 0.7)), {0.15, 0, 0.6, 0, 0});
  CHECK(metric(f1, kScores, kLabels, averaged("weighted", 0.7))[0] == doctest::Approx(0.16153846153846155));
  // Probabilities instead of logits.
  Rows probabilities = kScores;
  for (std::vector<float>& row : probabilities) {
    for (float& score : row) score = 1 / (1 + std::exp(-score));
  }
  Attributes attributes = averaged("macro", 0.7);
  attributes.set("logits", int64_t{0});
  check_same(metric(f1, probabilities, kLabels, attributes), {0.15, 0, 0.6, 0, 0});
}

TEST_CASE("missing labels take no part in AUC, precision, recall and F1") {
  const std::vector<double> areas = {0.11666666666666663, 1, 0.75, 0.5555555555555556};
  const double mean = (areas[0] + areas[1] + areas[2] + areas[3]) / 4;
  for (const float gap : {-1.0f, float(kNan)}) {
    const Rows labels = with_gaps(gap);
    check_same(metric("arbalest.AUC", kScores, labels), {mean, areas[0], areas[1], areas[2], areas[3]});
    check_same(metric("arbalest.Precision", kScores, labels), {0.625, 0, 1, 0.5, 1});
    check_same(metric("arbalest.Recall", kScores, labels), {0.375, 0, 0.8333333333333334, 1.0 / 3, 1.0 / 3});
    check_same(metric("arbalest.F1", kScores, labels), {(10.0 / 11 + 0.4 + 0.5) / 4, 0, 10.0 / 11, 0.4, 0.5});
  }
  const Rows bytes = with_gaps(255);
  CHECK(metric("arbalest.AUC", kScores, bytes, {}, DataType::Uint8)[0] == doctest::Approx(mean));
  CHECK(std::isnan(metric("arbalest.AUC", kScores, bytes)[0]));  // in floats 255 is no label
  CHECK(std::isnan(metric("arbalest.F1", kScores, bytes)[0]));
  CHECK(metric("arbalest.F1", {{1.0f}, {-1.0f}}, {{-1.0f}, {-1.0f}}).size() == 1);
  CHECK(std::isnan(metric("arbalest.F1", {{1.0f}, {-1.0f}}, {{-1.0f}, {-1.0f}})[0]));
}

TEST_CASE("a score of one label has one number") {
  const Rows scores = {{2}, {1}, {-1}, {-2}, {3}}, labels = {{1}, {0}, {1}, {0}, {1}};
  CHECK(metric("arbalest.Precision", scores, labels) == std::vector<double>{2.0 / 3});
  CHECK(metric("arbalest.Recall", scores, labels) == std::vector<double>{2.0 / 3});
  CHECK(std::isnan(metric("arbalest.F1", {{float(kNan)}}, {{1}})[0]));
}

TEST_CASE("averages and thresholds that are none are refused") {
  const TensorType scores{DataType::Float32, {4, 3}}, classes{DataType::Int32, {4}};
  const auto refusal = [&](const TensorType& labels, const Attributes& attributes) -> std::string {
    try {
      const test::Case test(builtin_ops().get("arbalest.F1"), {scores, labels}, 1, attributes);
    } catch (const GraphError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(scores, averaged("macros")).find("'average' is \"macros\"; expected \"macro\"") != std::string::npos);
  CHECK(refusal(scores, averaged("macro", 1)).find("'threshold' is 1; expected more than 0") != std::string::npos);
  CHECK(refusal(classes, averaged("macro", 0.7)).find("'threshold' has no effect") != std::string::npos);
  CHECK(refusal({DataType::Int64, {4, 3}}, {}).find("expected float, int32 or uint8") != std::string::npos);
}

TEST_CASE("metrics over classes leave out samples whose label is ignored") {
  Rows scores = kScores, labels = kClasses, others, fewer;
  for (size_t n = 0; n < kSamples; ++n) {
    if (n % 4 == 1) {
      labels[n] = {-100};
      continue;
    }
    others.push_back(scores[n]);
    fewer.push_back(labels[n]);
  }
  for (const char* name : {"arbalest.AUC", "arbalest.Precision", "arbalest.Recall", "arbalest.F1"}) {
    INFO(name);
    const std::vector<double> found = metric(name, scores, labels, {{"ignore_index", int64_t{-100}}});
    CHECK(std::isfinite(found[0]));
    check_same(found, metric(name, others, fewer));
    CHECK(std::isnan(metric(name, scores, labels)[0]));
  }
}

}  // namespace rates_test
