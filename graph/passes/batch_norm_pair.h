#pragma once
// Two batch norms whose sum goes through Relu, as where a block of a residual network projects its input: one node,
// which reads both inputs as the convolutions left them. This says at which places arbalest.BatchNormPairTraining,
// …Grad and …Again have their operands; the pass fuse_batch_norm_pairs makes these nodes.

#include <cstddef>

namespace arbalest {

// Training: X, scale, bias, running_mean, running_var, the same five of the second, then partials of each. Of the
// outputs Y, then new_mean, new_var, saved_mean, saved_inv_std of each.
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

// Gradient: dY, Y, dY2, partials of the first, then X, scale, saved_mean, saved_inv_std of each. Of the outputs dX,
// dscale, dbias of each.
inline constexpr size_t kPairGradY = 1, kPairGradSecond = 2, kPairGradPartials = 3;
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

}  // namespace arbalest
