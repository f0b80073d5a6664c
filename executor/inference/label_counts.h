// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts how often a model with several labels per sample is right, label by label.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/types.h"

namespace arbalest {

// Fractions; NaN if there is nothing to divide by.
struct LabelRates {
  double threshold = 0;    // the probability above which the label is predicted
  double sensitivity = 0;  // of the samples that have the label, which are predicted to: recall
  double specificity = 0;  // of those that have it not, which are not
  double precision = 0;    // of those predicted to have it, which do
};

// A sample's row of labels, as a batch hands it out: 0 to 1, or −1 if it is unknown: −1, 255 in uint8, or NaN.
std::vector<float> targets_of(const std::byte* row, DataType type, size_t labels);

class LabelCounts {
 public:
  explicit LabelCounts(size_t labels) : scores_(labels) {}

  // One sample: the scores of its labels, as SigmoidCrossEntropy takes them, and what they are, 1 or 0. Others are
  // unknown and do not count, nor do scores that are not numbers.
  void add(std::span<const float> logits, std::span<const float> targets);

  size_t labels() const { return scores_.size(); }
  int64_t positive(size_t label) const;
  int64_t negative(size_t label) const;

  LabelRates at(size_t label, double threshold) const;
  // At the threshold whose sensitivity and specificity have the greatest sum (Youden's index), halfway between two
  // probabilities; of several such the highest. NaN if not both kinds of samples are there.
  LabelRates best(size_t label) const;

 private:
  struct Scores {
    std::vector<float> positive, negative;
  };
  std::vector<Scores> scores_;  // by label
};

}  // namespace arbalest
