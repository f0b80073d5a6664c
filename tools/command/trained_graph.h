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

// The data that the run of a file of weights trained on, as its graph's Prefetch named them:
// "mnist:DIR?folds=5&fold=2". "" if the file does not say so, or is of another graph. `file`: the graph without
// changes. Throws RunError if the file cannot be read.
std::string data_of_run(const Graph& file, const std::string& weights);

// Takes over what a model is judged by from the run of --weights, if that run had this graph: --seed, from which some
// sources draw, and --skip-bad. Options of the command line stay. Says what it takes. Throws RunError if --weights
// cannot be read.
void take_as_trained(SessionOptions& session, const GraphOptions& options, const Graph& graph);

}  // namespace arbalest
