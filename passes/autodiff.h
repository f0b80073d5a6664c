// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reverse-mode automatic differentiation on the graph: appends gradient nodes, computes nothing.

#include <span>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// Appends to `graph` the nodes that compute d`loss`/d`wrt[i]`, by a reverse walk that calls each op's `grad`. `loss` is
// a scalar. `seed`, of the loss's type, is what its own gradient is taken for; kNone: 1. Returns the gradients, in the
// order of `wrt`; throws GraphError at `loss`'s node if none of them reaches it, and at a node in between whose op
// has no gradient.
std::vector<ValueId> add_gradients(Graph& graph, ValueId loss, std::span<const ValueId> wrt, ValueId seed = kNone);

}  // namespace arbalest
