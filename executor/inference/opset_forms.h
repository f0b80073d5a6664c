// SPDX-License-Identifier: Apache-2.0
#pragma once
// The forms that nodes have in one of ONNX's opsets. Graphs may have those of any opset from 7 on, side by side.

#include <cstdint>

#include "graph/graph.h"

namespace arbalest {

// Gives nodes of older opsets the form of opset 18 or of the least later one, up to 22, that has all of the graph's.
// Returns that opset. Nodes that are added stand at the end, and operands may still be
// attributes.
int64_t put_in_opset(Graph& graph);

}  // namespace arbalest
