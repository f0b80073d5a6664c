// SPDX-License-Identifier: Apache-2.0
#pragma once
// The positions of operands of norms of rows.

#include <cstddef>

namespace arbalest {

// LayerNormalization and GroupNormalization, and the first of InstanceNormalization and arbalest.Normalize.
struct LayerNormInput {
  enum : size_t { X, Scale, Bias };
};
struct LayerNormOutput {
  enum : size_t { Y, Mean, InvStd };
};
// arbalest.NormalizeGrad, and the first two of arbalest.NormalizeSamplesGrad. The summand is added to dX.
struct NormalizeGradInput {
  enum : size_t { dY, X, Scale, Summand };
};
struct NormalizeGradOutput {
  enum : size_t { dX, dScale, dBias };
};

}  // namespace arbalest
