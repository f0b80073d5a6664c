// SPDX-License-Identifier: Apache-2.0

// AUC's number, made on the host of all rows: against pairs counted one by one, and against values worked out by hand.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "graph/op.h"
#include "ops/builtin_ops.h"

using namespace arbalest;

namespace auc_test {
namespace {

// Scores (n, columns) and labels (n, columns) or, as classes, (n).
struct Case {
  std::vector<std::vector<float>> scores, labels;
  int64_t softmax = 1;
};

std::vector<double> auc_of(const Case& c) {
  const Op& op = builtin_ops().get("arbalest.AUC");
  const auto samples = int64_t(c.scores.size());
  const auto scores = int64_t(c.scores[0].size()), labels = int64_t(c.labels[0].size());
  std::vector<float> rows;
  for (size_t n = 0; n < c.scores.size(); ++n) {
    rows.insert(rows.end(), c.scores[n].begin(), c.scores[n].end());
    rows.insert(rows.end(), c.labels[n].begin(), c.labels[n].end());
  }
  Node node;
  node.op = &op;
  node.attributes.set("softmax", c.softmax);
  const std::vector<TensorType> inputs = {{DataType::Float32, {samples, scores}},
                                          {DataType::Float32, {samples, labels}}};
  return op.metric->finish(node, inputs, {rows, scores + labels});
}

// The share of pairs of a positive and a negative in which the positive scores higher; a tie is half a pair.
double by_pairs(const std::vector<double>& scores, const std::vector<bool>& positive) {
  double won = 0, pairs = 0;
  for (size_t p = 0; p < scores.size(); ++p) {
    for (size_t n = 0; n < scores.size(); ++n) {
      if (!positive[p] || positive[n]) continue;
      pairs += 1;
      won += scores[p] > scores[n] ? 1 : scores[p] == scores[n] ? 0.5 : 0;
    }
  }
  return pairs > 0 ? won / pairs : std::nan("");
}

double mean_of_defined(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (!std::isnan(value)) sum += value, count += 1;
  }
  return count > 0 ? sum / count : std::nan("");
}

void check_same(double value, double expected) {
  if (std::isnan(expected)) {
    CHECK(std::isnan(value));
  } else {
    CHECK(value == doctest::Approx(expected).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("AUC of classes: rows that differ by a number are equally probable") {
  const Case rows = {{{0, 1}, {1, 2}, {0, 1}, {3, 4}, {0.5f, 1.5f}, {7, 8}}, {{0}, {1}, {1}, {0}, {0}, {1}}};
  for (const double area : auc_of(rows)) CHECK(area == 0.5);
}

TEST_CASE("AUC of a score: values worked out by hand") {
  // Three of the four pairs are in order: scikit-learn's example of roc_auc_score.
  CHECK(auc_of({{{0.1f}, {0.4f}, {0.35f}, {0.8f}}, {{0}, {0}, {1}, {1}}})[0] == 0.75);
  CHECK(auc_of({{{1}, {2}, {3}}, {{0}, {1}, {1}}})[0] == 1);
  CHECK(auc_of({{{3}, {2}, {1}}, {{0}, {1}, {1}}})[0] == 0);
  CHECK(auc_of({{{5}, {5}, {5}}, {{0}, {1}, {1}}})[0] == 0.5);
  // Pairs: 2 > 1, 2 = 2, 3 > 1, 3 > 2: 3.5 of 4.
  CHECK(auc_of({{{1}, {2}, {2}, {3}}, {{0}, {0}, {1}, {1}}})[0] == 0.875);
  CHECK(auc_of({{{1}, {2}}, {{0}, {1}}}).size() == 1);  // no parts
}

TEST_CASE("AUC is undefined where one kind is missing, and where scores or labels are none") {
  CHECK(std::isnan(auc_of({{{1}, {2}}, {{1}, {1}}})[0]));
  CHECK(std::isnan(auc_of({{{1}, {2}}, {{0}, {0}}})[0]));
  CHECK(std::isnan(auc_of({{{1}, {std::nanf("")}}, {{0}, {1}}})[0]));
  CHECK(std::isnan(auc_of({{{1}, {2}, {3}}, {{0}, {1}, {2}}})[0]));
  CHECK(std::isnan(auc_of({{{1}, {2}}, {{0}, {0.5f}}})[0]));
  CHECK(std::isnan(auc_of({{{1, 2}, {2, 1}}, {{0}, {2}}})[0]));  // a class that there is not
  CHECK(std::isnan(auc_of({{{1, 2}, {2, 1}}, {{0}, {-1}}})[0]));
}

TEST_CASE("AUC of logits that are infinite: by their softmax where there is one, else undefined") {
  const float infinity = std::numeric_limits<float>::infinity();
  // A class that is ruled out has the probability 0.
  const Case ruled_out{{{-infinity, 1}, {2, 1}, {0, 3}}, {{1}, {0}, {1}}};
  CHECK(auc_of(ruled_out) == std::vector<double>{1, 1, 1});
  const Case overflown{{{infinity, 1}, {2, 1}, {0, 3}}, {{1}, {0}, {1}}};
  for (const double value : auc_of(overflown)) CHECK(std::isnan(value));
  Case by_scores = overflown;
  by_scores.softmax = 0;
  CHECK(auc_of(by_scores)[1] == 0.5);
}

TEST_CASE("AUC of a score is the share of pairs in order, ties included") {
  std::mt19937 random(3);
  for (const int levels : {2, 5, 1000000}) {
    for (const int samples : {2, 7, 61, 300}) {
      std::uniform_int_distribution<int> level(0, levels - 1), coin(0, 2);
      Case c;
      std::vector<double> scores;
      std::vector<bool> positive;
      for (int n = 0; n < samples; ++n) {
        scores.push_back(level(random) * 0.125);
        positive.push_back(coin(random) == 0);
        c.scores.push_back({float(scores.back())});
        c.labels.push_back({positive.back() ? 1.0f : 0.0f});
      }
      INFO(samples, " samples, ", levels, " levels");
      check_same(auc_of(c)[0], by_pairs(scores, positive));
    }
  }
}

TEST_CASE("AUC of several labels is the mean over those that have both kinds") {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> level(0, 9), coin(0, 1);
  Case c;
  constexpr size_t kSamples = 83, kLabels = 4;
  std::vector<std::vector<double>> scores(kLabels);
  std::vector<std::vector<bool>> positive(kLabels);
  for (size_t n = 0; n < kSamples; ++n) {
    c.scores.emplace_back();
    c.labels.emplace_back();
    for (size_t l = 0; l < kLabels; ++l) {
      scores[l].push_back(level(random));
      positive[l].push_back(l == 2 || coin(random) == 1);  // the third label is always set
      c.scores.back().push_back(float(scores[l].back()));
      c.labels.back().push_back(positive[l].back() ? 1.0f : 0.0f);
    }
  }
  const std::vector<double> values = auc_of(c);
  REQUIRE(values.size() == 1 + kLabels);
  std::vector<double> expected;
  for (size_t l = 0; l < kLabels; ++l) {
    expected.push_back(by_pairs(scores[l], positive[l]));
    check_same(values[1 + l], expected[l]);
  }
  CHECK(std::isnan(values[3]));
  check_same(values[0], mean_of_defined(expected));
  CHECK(builtin_ops()
            .get("arbalest.AUC")
            .metric->parts(Node{}, {{DataType::Float32, {8, 4}}, {DataType::Float32, {8, 4}}}) ==
        std::vector<std::string>{"0", "1", "2", "3"});
}

TEST_CASE("AUC of classes is the mean of one against the rest, by probabilities or by the scores themselves") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 2);
  std::uniform_int_distribution<int> any(0, 3);
  Case c;
  constexpr size_t kSamples = 120, kClasses = 5;  // the last class never is
  std::vector<int> classes;
  for (size_t n = 0; n < kSamples; ++n) {
    c.scores.emplace_back();
    for (size_t k = 0; k < kClasses; ++k) c.scores.back().push_back(normal(random));
    classes.push_back(any(random));
    c.labels.push_back({float(classes.back())});
  }
  for (const int64_t softmax : {1, 0}) {
    c.softmax = softmax;
    std::vector<double> expected;
    for (size_t k = 0; k < kClasses; ++k) {
      std::vector<double> scores;
      std::vector<bool> positive;
      for (size_t n = 0; n < kSamples; ++n) {
        double sum = 0;
        for (const float score : c.scores[n]) sum += std::exp(double(score));
        scores.push_back(softmax ? std::exp(double(c.scores[n][k])) / sum : double(c.scores[n][k]));
        positive.push_back(classes[n] == int(k));
      }
      expected.push_back(by_pairs(scores, positive));
    }
    const std::vector<double> values = auc_of(c);
    REQUIRE(values.size() == 1 + kClasses);
    for (size_t k = 0; k < kClasses; ++k) check_same(values[1 + k], expected[k]);
    check_same(values[0], mean_of_defined(expected));
    CHECK(std::isnan(values[kClasses]));
  }
}

TEST_CASE("metrics say which way is better and what they can be") {
  for (const Op& op : builtin_ops().all()) {
    INFO(op.qualified_name());
    if (op.metric && op.domain == "arbalest") CHECK(op.metric->better.has_value());
  }
  const MetricSpec& accuracy = *builtin_ops().get("arbalest.Accuracy").metric;
  const MetricSpec& loss = *builtin_ops().get("arbalest.SoftmaxCrossEntropy").metric;
  const MetricSpec& auc = *builtin_ops().get("arbalest.AUC").metric;
  CHECK(accuracy.better == MetricSpec::Better::Higher);
  CHECK(loss.better == MetricSpec::Better::Lower);
  CHECK(auc.better == MetricSpec::Better::Higher);
  CHECK((accuracy.least == 0 && accuracy.most == 1));
  CHECK((auc.least == 0 && auc.most == 1));
  CHECK((loss.least == 0 && std::isinf(loss.most)));
}

}  // namespace auc_test
