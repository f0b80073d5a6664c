// SPDX-License-Identifier: Apache-2.0
#include "ops/layers/layer_axis.h"

#include <fmt/format.h>

#include "ops/definition.h"

namespace arbalest {

size_t layer_axis(const Node& node, const TensorType& x) {
  const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(node, "axis");
  if (axis == 0 || axis < 1 - rank || axis >= rank) {
    fail(node, fmt::format("attribute 'axis' is {}; expected 1 to {}, or {} to -1, for input 'X', {}", axis, rank - 1,
                           1 - rank, to_string(x)));
  }
  return normalized_axis(axis, size_t(rank));
}

}  // namespace arbalest
