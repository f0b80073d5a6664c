// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operands of the gradient of a batch norm with Relu, in a device's memory.

#include <cstdint>

namespace arbalest::cuda {

// Condition for Relu to pass the gradient. None: always. Y: if Y > 0. X: if the value that Y was made of, computed
// again from X and the channel's numbers, is above 0.
enum class Mask : uint8_t { None, Y, X };

// Operands of the gradient g of the normalised values. dY2 is added unless it is null.
template <typename T>
struct GradientOf {
  const T *dy, *dy2, *x, *y;
  const float *mean, *inv_std, *scale, *bias;  // by channel; the last with Mask::X
};

// Operands of the gradient of two batch norms whose sum goes through Relu. g = dY + dY2 where Relu lets y pass; the
// sums are those of g with both inputs.
template <typename T>
struct PairGradientOf {
  const T *dy, *dy2, *y, *x, *x2;
  const float *mean, *mean2;  // by channel
};

}  // namespace arbalest::cuda
