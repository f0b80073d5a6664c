// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers for the definitions of operators that convolve.

#include <optional>

#include "ops/definition.h"

namespace arbalest {

// Type of Conv's Y from those of X and W, inputs of the node; fails if they do not fit the attributes.
TensorType convolved_type(const InferContext& context, size_t x_index, size_t w_index);

// Cost: multiplications and additions, and the bytes of all operands. x, w and dy are inputs of their shapes. Without
// dy the first output is Y.
std::function<Cost(const Graph&, const Node&)> conv_cost(size_t x, size_t w, std::optional<size_t> dy = std::nullopt);

// Conv's attributes.
std::vector<AttributeSpec> conv_specs();

}  // namespace arbalest
