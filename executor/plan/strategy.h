// SPDX-License-Identifier: Apache-2.0
#pragma once
// A strategy of synchronisation: how learners agree on one model. One object says where the training step is cut, which
// memory learners share, which tasks and edges make them agree, what the scalars of a tick are, what their model is,
// and what another number of learners goes on from. Those of the library are in executor/strategies, a file each;
// examples/outside has one of its own.

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "executor/plan/phases.h"

namespace arbalest {

struct RunState;   // executor/session/run_state.h
struct CarryOver;  // executor/session/run_state.h

// The first update of a group of updates, as a learner makes it. A segment begins with its group 0.
struct GroupBegin {
  int64_t group = 0;
  bool rate_drops = false;   // the rate has dropped in a step since the group before
  double rate_share = 1;     // the rate, divided by the schedule's greatest
  double carried_share = 0;  // LearnerState::correction that the segment began with
};

// Objects are shared by all threads and do not change. Plans ask them while they are made, sessions once a group and
// where a segment ends; nothing asks them for each task.
class Strategy {
 public:
  // The facts by which passes, plans and sessions go.
  explicit Strategy(StrategySpec facts) : facts_(std::move(facts)) {}
  virtual ~Strategy() = default;
  const StrategySpec& facts() const { return facts_; }  // as the constructor was given

  // Phases of make_plan(), in their order. Each may throw GraphError if the request does not suit the strategy.
  virtual StepCut cut_step(const PlanInputs& in) const;  // unless overridden: one task, the update included
  // Adds the memory that learners share.
  virtual void add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks, SharedMemory& memory) const;
  // Adds the tasks that make the learners agree, and their edges. Returns, by device, the task after which its models
  // are averaged: empty unless the strategy averages models.
  virtual std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& cut) const;

  // Sets `correction` and `restart` of a group's first update. Called only if the strategy corrects.
  virtual void begin_group(const GroupBegin& begin, const StrategyOptions& options, StepScalars& scalars) const;

  // The weights, float[P], of the learners' model. If they have made updates since the last averaging, they are
  // averaged once more. Unless overridden: the first learner's.
  virtual std::vector<std::byte> shared_weights(const RunState& state, const StrategyOptions& options) const;
  // Changes what `next` has from the strategy before, for learners that go on under this one.
  virtual void carry_over(const CarryOver& from, RunState& next) const;

 private:
  StrategySpec facts_;
};

// Makes the strategy known to graph files, the command and plans. Call it before a graph that names it is read, from
// any thread. Throws GraphError as add_strategy_spec() does.
void register_strategy(std::unique_ptr<const Strategy> strategy);

// nullptr if there is none of this name.
const Strategy* find_strategy(std::string_view name);
// Throws GraphError as strategy_spec() does.
const Strategy& strategy_named(std::string_view name);

}  // namespace arbalest
