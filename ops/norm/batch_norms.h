// SPDX-License-Identifier: Apache-2.0
#pragma once
// The positions of operands of batch norms, single ones and operators on several at once.

#include <cstddef>

namespace arbalest {

// BatchNormalization, arbalest.BatchNormTraining and arbalest.BatchNormInference; only training takes partials.
// arbalest.BatchNormAgain has saved mean and inverse deviation in place of the running statistics.
struct BatchNormInput {
  enum : size_t { X, Scale, Bias, Mean, Variance, Residual, Partials };
};
struct BatchNormOutput {  // of training
  enum : size_t { Y, NewMean, NewVariance, SavedMean, SavedInvStd };
};
// arbalest.BatchNormStatistics: what training makes besides Y, at the positions that training has them after Y.
struct BatchNormStatisticsInput {
  enum : size_t { X, Mean, Variance, Partials };
};
struct BatchNormStatisticsOutput {
  enum : size_t { NewMean, NewVariance, SavedMean, SavedInvStd };
};
// arbalest.BatchNormGrad. Y or Bias say where Relu lets a gradient pass; Second is added to dY.
struct BatchNormGradInput {
  enum : size_t { dY, X, Y, Scale, SavedMean, SavedInvStd, Bias, Second, Partials };
};
struct BatchNormGradOutput {
  enum : size_t { dX, dScale, dBias, Residual };
};
struct BatchNormInferenceGradInput {  // arbalest.BatchNormInferenceGrad, which has the first three outputs
  enum : size_t { dY, X, Scale, Mean, Variance };
};
// arbalest.ConvGradInputSums: the gradient of a convolution, and sums for the batch norm, or the two, before it.
struct ConvSumsInput {
  enum : size_t { dY, W, X, Y, Scale, SavedMean, SavedInvStd, Bias, Second, X2, SavedMean2 };
};
struct ConvSumsOutput {
  enum : size_t { dX, Partials, Partials2 };
};
struct ConvStatisticsOutput {
  enum : size_t { Y, Partials };
};

// Two batch norms whose sum goes through Relu, as in a block of a residual network that projects its input. They are
// one node, which reads both inputs as the convolutions left them: arbalest.BatchNormPairTraining, …Grad and …Again.
// The pass fuse_batch_norm_pairs makes these nodes.

// Training, inputs: X, scale, bias, running_mean, running_var of the first, the same five of the second, then partials
// of each. Outputs: Y, then new_mean, new_var, saved_mean, saved_inv_std of each.
constexpr size_t pair_training_input(size_t of, size_t i) {
  return 5 * of + i;
}
constexpr size_t pair_training_partials(size_t of) {
  return 10 + of;
}
constexpr size_t pair_training_statistics(size_t of, size_t i) {
  return 1 + 4 * of + i;
}
inline constexpr const char* kPairChunkPixels[] = {"chunk_pixels", "second_chunk_pixels"};  // attributes, by `of`

// Gradient, inputs: dY, Y, dY2, partials of the first, then X, scale, saved_mean, saved_inv_std of each, then partials
// of the second. Outputs: dX, dscale, dbias of each.
inline constexpr size_t kPairGradY = 1, kPairGradSecond = 2, kPairGradPartials = 3, kPairGradPartials2 = 12;
constexpr size_t pair_grad_input(size_t of, size_t i) {
  return 4 + 4 * of + i;
}
constexpr size_t pair_grad_output(size_t of, size_t i) {
  return 3 * of + i;
}

// Again: X, scale, bias, saved_mean, saved_inv_std of each.
constexpr size_t pair_again_input(size_t of, size_t i) {
  return 5 * of + i;
}

// Batch norms over parts: tensors that follow each other along the channels, without being copied together. The pass
// fuse_concats makes these nodes: arbalest.BatchNormPartsTraining, …Inference and …Grad. Scale, bias, mean and variance
// cover all channels, at the same positions as in BatchNormTraining and BatchNormInference.

inline constexpr size_t kMostParts = 64;  // their addresses are a kernel's parameters

// Training: X_0, scale, bias, running_mean, running_var, statistics_0, then X_i and statistics_i of the others.
constexpr size_t training_part(size_t i) {
  return i == 0 ? 0 : 4 + 2 * i;
}
constexpr size_t training_statistics(size_t i) {
  return 5 + 2 * i;
}
constexpr size_t training_parts(size_t inputs) {
  return (inputs - 4) / 2;
}

// Inference: X_0, scale, bias, mean, var, then X_i of the others.
constexpr size_t inference_part(size_t i) {
  return i == 0 ? 0 : 4 + i;
}
constexpr size_t inference_parts(size_t inputs) {
  return inputs - 4;
}

// Gradient: X_i and addend_i follow these inputs, dX_i these outputs.
struct BatchNormPartsGradInput {
  enum : size_t { dY, Scale, SavedMean, SavedInvStd, Bias };
};
struct BatchNormPartsGradOutput {
  enum : size_t { dScale, dBias };
};
constexpr size_t gradient_part(size_t i) {
  return 5 + 2 * i;
}
constexpr size_t gradient_addend(size_t i) {
  return 6 + 2 * i;
}
constexpr size_t gradient_parts(size_t inputs) {
  return (inputs - 4) / 2;
}
constexpr size_t part_gradient(size_t i) {
  return 2 + i;
}

}  // namespace arbalest
