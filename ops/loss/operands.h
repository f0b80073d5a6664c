// SPDX-License-Identifier: Apache-2.0
#pragma once
// The places of operands of losses.

#include <cstddef>

namespace arbalest {

// Losses, whose weights are of labels or of classes, and their gradients.
struct LossInput {
  enum : size_t { X, Target, Weights };
};
struct LossGradInput {
  enum : size_t { dLoss, X, Target, Weights };
};
struct LossOutput {
  enum : size_t { Mean, Weight };
};
struct ClassLossOutput {  // SoftmaxCrossEntropyLoss
  enum : size_t { Loss, LogProbabilities };
};
struct CrossEntropyOutput {  // arbalest.SoftmaxCrossEntropy
  enum : size_t { Mean, Accuracy, MeanWeight, AccuracyWeight };
};
struct BatchWeightInput {
  enum : size_t { Weight, Loss };
};
struct BatchWeightOutput {
  enum : size_t { Share, Seed };
};

}  // namespace arbalest
