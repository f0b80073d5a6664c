// SPDX-License-Identifier: Apache-2.0
#pragma once
// The attribute `axis` of a layer.

#include "graph/op.h"

namespace arbalest {

// The attribute as an axis of the layer's input x, counted from 0. Throws GraphError if x has no such axis or it is the
// batch's.
size_t layer_axis(const Node& node, const TensorType& x);

}  // namespace arbalest
