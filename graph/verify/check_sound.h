// SPDX-License-Identifier: Apache-2.0
#pragma once
// Soundness, which every pass has to keep.

#include "graph/graph.h"

namespace arbalest {

// Checks a graph whose types have been inferred, as every pass has to leave it: all that verify() checks, producers,
// ids and carries. Types are those that operators infer. Views lie apart within their bases, and outputs share memory
// with inputs only as their operators say. Throws one GraphError with all faults.
void check_sound(const Graph& graph);

}  // namespace arbalest
