#pragma once
// Soundness, which every pass has to keep.

#include "graph/graph.h"

namespace arbalest {

// Checks a graph whose types have been inferred, as every pass has to leave it: all that verify() checks; that types are
// those that operators infer; producers and ids; views, which lie apart within what they are parts of; memory that
// outputs share with inputs; and carries. Throws one GraphError that tells all faults.
void check_sound(const Graph& graph);

}  // namespace arbalest
