// SPDX-License-Identifier: Apache-2.0
#pragma once
// The slack of a plan's tasks and edges outside its critical cycle.

#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

// Slack in µs, by task and by edge; infinity for those on no cycle, since nothing ever waits for them in the long run.
struct Slack {
  Table<TaskId, double> tasks;  // how much longer each instance may take before critical_cycle()'s bound rises
  Table<EdgeId, double> edges;  // how much later the edge's data or slot may arrive
};

// `critical` is critical_cycle(plan), whose tasks and edges have no slack. Without a critical cycle all is infinite.
Slack slack_of(const Plan& plan, const Cycle& critical);

}  // namespace arbalest
