// SPDX-License-Identifier: Apache-2.0
#pragma once
// Faults that end a run before it trains, found without training.

#include "executor/plan/plan.h"
#include "executor/session/session.h"

namespace arbalest {

// Throws GraphError for GPUs that are not there.
void check_devices(const std::vector<PlanDevice>& devices);

// Prepares and plans the run of a graph. Throws GraphError or RunError as the run would: for a graph that does not fit
// its data, weights that do not fit the graph, a metric that validation has not, a target that it cannot reach, or a
// rule that has no validation to follow.
Plan checked_plan(Graph graph, const SessionOptions& options);

}  // namespace arbalest
