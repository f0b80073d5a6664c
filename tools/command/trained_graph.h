#pragma once
// The graph that a file of weights was trained by.

#include <string>
#include <vector>

#include "graph/graph.h"
#include "tools/command/options.h"

namespace arbalest {

// The graph as the file says, changed by what the run of --weights changed in it (--set), and then by --set. What is
// taken from the weights, and in what the graph differs from the run's nevertheless, is told in a line each. A run of
// another graph is told, and nothing is taken from it. `files`: as load_graph() tells them. Throws GraphError, and
// RunError where --weights cannot be read.
Graph load_as_trained(const GraphOptions& options, std::vector<std::string>* files = nullptr);

// How many samples that cannot be read may be left out: as --skip-bad says, otherwise as in the run of --weights, where
// that was one of this graph, which is told. Throws RunError where --weights cannot be read.
int64_t skip_bad_as_trained(const GraphOptions& options, const Graph& graph);

}  // namespace arbalest
