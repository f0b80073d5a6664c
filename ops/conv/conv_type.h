#pragma once
// What definitions of operators that convolve share.

#include "ops/definition.h"

namespace arbalest {

// Conv's Y from the types of X and W, inputs of the node; fails where they do not fit the attributes.
TensorType convolved_type(const InferContext& context, size_t x_index, size_t w_index);

// Multiplications and additions, and the bytes of all operands; x, w and y tell where the shapes are.
std::function<Cost(const Graph&, const Node&)> conv_cost(bool y_is_output, size_t x, size_t w, size_t y);

// Conv's attributes.
std::vector<AttributeSpec> conv_specs();

}  // namespace arbalest
