#pragma once
// Batch norms over parts: tensors that lie beside each other along the channels, without being copied together. Where
// the operands are of arbalest.BatchNormPartsTraining, …Inference and …Grad, which the pass fuse_concats makes. Scale,
// bias, mean and variance are of all channels, and at the places that BatchNormTraining and BatchNormInference have
// for them.

#include <cstddef>

namespace arbalest {

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

// Gradient: dY, scale, saved_mean, saved_inv_std, bias, then X_i and addend_i; of the outputs dscale, dbias, then dX_i.
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
