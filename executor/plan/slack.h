#pragma once
// What a plan has to spare beside its critical cycle.

#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

// In µs, by task and by edge; infinity: on no cycle, so that nothing waits for it for ever.
struct Slack {
  std::vector<double> tasks;  // how much longer each instance may take before critical_cycle()'s bound rises
  std::vector<double> edges;  // how much later what the edge carries may arrive
};

// `critical` is critical_cycle(plan), whose tasks and edges have no slack. Without a critical cycle all is infinite.
Slack slack_of(const Plan& plan, const Cycle& critical);

}  // namespace arbalest
