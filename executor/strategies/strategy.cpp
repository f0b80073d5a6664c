// SPDX-License-Identifier: Apache-2.0

// Behaviour of strategies that override nothing: learners train alone.

#include "executor/plan/strategy.h"

#include "executor/session/run_state.h"

namespace arbalest {

StepCut Strategy::cut_step(const PlanInputs& in) const {
  StepCut cut;
  cut.ends = {in.training().graph.nodes.end_id()};
  return cut;
}

void Strategy::add_memory(PlanBuilder& /*builder*/, const PlanInputs& /*in*/, const Clocks& /*clocks*/,
                          SharedMemory& /*memory*/) const {}

std::vector<TaskId> Strategy::add_tasks(const PlanSoFar& /*plan*/, const StepCut& /*cut*/) const {
  return {};
}

void Strategy::begin_group(const GroupBegin& /*begin*/, const StrategyOptions& /*options*/,
                           StepScalars& /*scalars*/) const {}

std::vector<std::byte> Strategy::shared_weights(const RunState& state, const StrategyOptions& /*options*/) const {
  return state.learners.front().weights;
}

void Strategy::carry_over(const CarryOver& /*from*/, RunState& /*next*/) const {}

}  // namespace arbalest
