#pragma once
// The attribute `axis` of a layer.

#include "graph/op.h"

namespace arbalest {

// Of the layer's input x: any axis but the batch's, counted from 0. Throws GraphError for another.
size_t layer_axis(const Node& node, const TensorType& x);

}  // namespace arbalest
