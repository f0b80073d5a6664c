// SPDX-License-Identifier: Apache-2.0
#pragma once
// The graph that a file of weights was trained by.

#include <string>
#include <vector>

#include "graph/graph.h"
#include "tools/command/options.h"

namespace arbalest {

// The graph as the file says, changed by what the run of --weights changed in it (--set), and then by --set. Prints a
// line for what is taken from the weights, and one for remaining differences from the run's graph. If the run had
// another graph, says so and takes nothing from it. `files`: as load_graph() returns them. Throws GraphError, and
// RunError if --weights cannot be read.
Graph load_as_trained(const GraphOptions& options, std::vector<std::string>* files = nullptr);

// How many samples that cannot be read may be left out: as --skip-bad says, otherwise as in the run of --weights, if
// that run had this graph, and says so. Throws RunError if --weights cannot be read.
int64_t skip_bad_as_trained(const GraphOptions& options, const Graph& graph);

}  // namespace arbalest
