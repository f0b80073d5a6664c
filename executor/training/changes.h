#pragma once
// Changes that a run that goes on may make: numbers of the learning rate's schedule.

#include <string>
#include <vector>

#include "executor/session/session.h"

namespace arbalest {

// Those of the checkpoint that the run goes on from and those asked for now, without what these replace.
std::vector<std::string> changes_of(const CheckpointOptions& options);

// What makes the numbers of a schedule that differ those of the graph: "train.lr=0.01". `before`: the line of Train in
// a checkpoint's RunIdentity::graph; `now`: that of the graph.
std::vector<std::string> changes_between(const Graph& graph, const std::string& before, const std::string& now);

// Changes the graph, which has to be verified again. Throws GraphError where one is no number of Train's schedule.
void apply_changes(Graph& graph, const std::vector<std::string>& changes);

}  // namespace arbalest
