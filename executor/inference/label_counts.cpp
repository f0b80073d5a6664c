// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/label_counts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace arbalest {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

double rate(int64_t part, int64_t whole) {
  return whole > 0 ? double(part) / double(whole) : kUndefined;
}

double probability(float logit) {
  return 1 / (1 + std::exp(-double(logit)));
}

int64_t above(const std::vector<float>& logits, double threshold) {
  return std::count_if(logits.begin(), logits.end(), [&](float logit) { return probability(logit) > threshold; });
}

template <typename T>
float element(const std::byte* row, size_t at) {
  T value;
  std::memcpy(&value, row + at * sizeof value, sizeof value);
  return float(value);
}

float element(const std::byte* row, DataType type, size_t at) {
  switch (type) {
    case DataType::Uint8:
    case DataType::Bool: return element<uint8_t>(row, at);
    case DataType::Int32: return element<int32_t>(row, at);
    case DataType::Int64: return element<int64_t>(row, at);
    case DataType::Float64: return element<double>(row, at);
    default: return element<float>(row, at);
  }
}

}  // namespace

std::vector<float> targets_of(const std::byte* row, DataType type, size_t labels) {
  std::vector<float> targets(labels);
  for (size_t label = 0; label < labels; ++label) {
    const float target = element(row, type, label);
    targets[label] = target >= 0 && target <= 1 ? target : -1;
  }
  return targets;
}

void LabelCounts::add(std::span<const float> logits, std::span<const float> targets) {
  for (size_t label = 0; label < scores_.size(); ++label) {
    if (std::isnan(logits[label])) continue;
    if (targets[label] == 1) scores_[label].positive.push_back(logits[label]);
    if (targets[label] == 0) scores_[label].negative.push_back(logits[label]);
  }
}

int64_t LabelCounts::positive(size_t label) const {
  return int64_t(scores_[label].positive.size());
}

int64_t LabelCounts::negative(size_t label) const {
  return int64_t(scores_[label].negative.size());
}

LabelRates LabelCounts::at(size_t label, double threshold) const {
  const int64_t right = above(scores_[label].positive, threshold), wrong = above(scores_[label].negative, threshold);
  return {threshold, rate(right, positive(label)), rate(negative(label) - wrong, negative(label)),
          rate(right, right + wrong)};
}

LabelRates LabelCounts::best(size_t label) const {
  std::vector<float> positive = scores_[label].positive, negative = scores_[label].negative;
  if (positive.empty() || negative.empty()) return {kUndefined, kUndefined, kUndefined, kUndefined};
  std::sort(positive.begin(), positive.end(), std::greater<>());
  std::sort(negative.begin(), negative.end(), std::greater<>());
  double greatest = -1, threshold = kUndefined;
  size_t right = 0, wrong = 0;  // above that threshold
  // Down the scores: i and j samples of either kind lie above the threshold.
  for (size_t i = 0, j = 0; i < positive.size() || j < negative.size();) {
    const float score =
        std::max(i < positive.size() ? positive[i] : negative[j], j < negative.size() ? negative[j] : positive[i]);
    while (i < positive.size() && positive[i] == score) ++i;
    while (j < negative.size() && negative[j] == score) ++j;
    const double sum = double(i) / double(positive.size()) - double(j) / double(negative.size());
    if (sum <= greatest) continue;
    greatest = sum;
    right = i;
    wrong = j;
    const bool last = i == positive.size() && j == negative.size();
    const float next = last ? -std::numeric_limits<float>::infinity()
                            : std::max(i < positive.size() ? positive[i] : negative[j],
                                       j < negative.size() ? negative[j] : positive[i]);
    threshold = (probability(score) + probability(next)) / 2;
  }
  // Counted by scores: probabilities of different scores may be the same number.
  return {threshold, rate(int64_t(right), int64_t(positive.size())),
          rate(int64_t(negative.size() - wrong), int64_t(negative.size())),
          rate(int64_t(right), int64_t(right + wrong))};
}

}  // namespace arbalest
