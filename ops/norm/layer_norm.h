// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms of rows: the positions of their operands, and what tells them apart.

#include <cstddef>

#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {

// LayerNormalization, RMSNormalization and GroupNormalization, and the first of InstanceNormalization and
// arbalest.Normalize.
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

// Fails unless `epsilon` is 0 or above.
inline void check_least_epsilon(const InferContext& context) {
  if (float_attribute(context.node(), "epsilon") != 0) positive_float(context.node(), "epsilon");
}

// Whether a norm, or the gradient of one, takes the mean off. Otherwise it divides by the root of the mean square.
inline bool is_centred(const Node& node) {
  return node.op->attribute_spec("centred") ? flag_attribute(node, "centred") : !node.is(op::RMSNormalization);
}

}  // namespace arbalest
