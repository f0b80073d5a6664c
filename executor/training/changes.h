// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes that a run that goes on may make: numbers of the learning rate's schedule.

#include <string>
#include <vector>

#include "executor/session/session.h"

namespace arbalest {

// The changes of the checkpoint that the run goes on from, followed by those asked for now, which replace earlier ones
// of the same setting.
std::vector<std::string> changes_of(const CheckpointOptions& options);

// Changes such as "train.lr=0.01" that give the checkpoint's schedule the graph's numbers, one for each that differs.
// `before`: the line of Train in the checkpoint's RunIdentity::graph; `now`: that line of the graph.
std::vector<std::string> changes_between(const Graph& graph, const std::string& before, const std::string& now);

// Applies changes to the graph, which has to be verified again. Throws GraphError if one is no number of Train's
// schedule.
void apply_changes(Graph& graph, const std::vector<std::string>& changes);

}  // namespace arbalest
