// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds a plan for the phases of make_plan(): one call for each clock, lane, task, edge, buffer or node.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/plan/make_plan.h"

namespace arbalest {

// An operand with what it holds, for nodes that the plan adds itself; without a buffer it is left out.
struct Term {
  Operand operand;
  TensorType type;
};

// Elements [offset, offset + bytes) of an operand, as a flat array.
Term part(const Operand& whole, DataType type, int64_t offset, int64_t bytes);

class PlanBuilder {
 public:
  Plan plan;

  Task& task(TaskId id) { return plan.tasks[id]; }

  ClockId add_clock(std::string name, int64_t ticks);
  // A clock that ticks when a group of `fine`'s ticks is complete, and its relation to `fine`.
  std::pair<ClockId, RelationId> add_coarser(std::string name, ClockId fine, int64_t group, int64_t period);
  LaneId add_lane(Lane::Kind kind, int32_t device, int32_t learner, std::string name);
  // The task is of the lane's device.
  TaskId add_task(Task::Kind kind, std::string name, LaneId lane, ClockId clock, int32_t width = 1);
  // The relation is that of the two tasks' clocks.
  void add_edge(TaskId from, TaskId to, int64_t distance, Edge::Needs needs, Edge::Why why, std::string what = "");
  // The task's instances run one after the other.
  void add_lane_order(TaskId task) { add_edge(task, task, 1, Edge::Needs::Issued, Edge::Why::Lane); }
  void add_operands(TaskId task, const std::vector<Operand>& operands);
  ArenaId add_arena(std::string name, int32_t device, Arena::Memory memory);
  // A buffer in an arena of its own.
  BufferId add_device_buffer(const std::string& name, int32_t device, int64_t bytes, int32_t slots, ClockId clock);
  // A node of the graph "synchronisation", which is the plan's own and comes after the loops' graphs, run by `task`.
  void add_node(TaskId task, std::string_view op, std::string name, const std::vector<Term>& inputs,
                const std::vector<Term>& outputs, Attributes attributes, Stage stage = Stage::Update);

 private:
  int32_t own_graph_ = kNone;  // in plan.graphs
};

}  // namespace arbalest
