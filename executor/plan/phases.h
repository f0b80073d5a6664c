// SPDX-License-Identifier: Apache-2.0
#pragma once
// The phases of make_plan(), in their order. Each is a function of the program, the request and what the phases before
// it returned, and adds its part to the plan.

#include <string>
#include <vector>

#include "executor/plan/plan_builder.h"

namespace arbalest {

class Strategy;  // executor/plan/strategy.h

// The inputs of a plan, and values that follow from them alone.
struct PlanInputs {
  const Program& program;
  const PlanRequest& request;

  const Loop& training() const { return program.training(); }
  const Strategy& strategy() const;  // the request's. Throws GraphError if there is none of its name
  const StrategySpec& strategy_facts() const { return strategy_spec(request.strategy.name); }
  bool synchronised() const { return !strategy_facts().alone; }
  int32_t devices() const { return int32_t(request.devices.size()); }
  int64_t learners() const { return int64_t(request.devices.size()) * request.learners; }  // of all devices
  // True if hosts average with each other more rarely than learners of a host do.
  bool hosts_average_apart() const;
  // The devices that average with each other each time: those of each host, or all. By host, each list in order.
  std::vector<std::vector<int32_t>> averaging_groups() const;
  std::string device_name(int32_t device) const { return to_string(request.devices[size_t(device)]); }
  // Index in Plan::graphs of the graph of `loop`, one of the program's loops.
  int32_t graph_of(const Loop& loop) const { return int32_t(&loop - program.loops.data()); }
  const TensorType& type_of(ValueId value) const { return training().graph.values[value].type; }
};

// Throws GraphError if the options do not fit the program or each other.
void check(const PlanInputs& in);

// True if compute lanes of the device have a branch: the device is a GPU with few learners.
bool has_branches(const PlanInputs& in, int32_t device);

// The plan's clocks; kNone for those that it does not have.
struct Clocks {
  ClockId batch = kNone, report = kNone, sync = kNone, validation = kNone, validation_batch = kNone,
          recalibration_batch = kNone;
  ClockId hosts = kNone;           // averagings between hosts, where these are rarer than those of `sync`
  int64_t validations = 0;         // ticks of `validation`
  int64_t validation_every = 0;    // batches from one validation to the next
  int64_t validation_batches = 0;  // of one validation, on each device that takes part
};
Clocks add_clocks(PlanBuilder& builder, const PlanInputs& in);

struct Lanes {
  LaneId host = kNone;
  LaneId collectives = kNone;                        // over all devices, if several synchronise
  std::vector<LaneId> within_hosts;                  // over those of each host, if hosts average apart
  LaneId validation_collectives = kNone;             // the same for validation
  std::vector<LaneId> copy_in, copy_out, averaging;  // by device
};
Lanes add_lanes(PlanBuilder& builder, const PlanInputs& in);

// Gradients that are averaged together, complete once node `last` has run.
struct Bucket {
  int64_t offset = 0, bytes = 0;
  NodeId last = kNone;
};

// How a training step is cut into tasks, so that others can come in between: parts of forward and backward, then the
// update, in one task or two.
struct StepCut {
  std::vector<NodeId> ends;     // of the parts but the update, which may be empty
  std::vector<Bucket> buckets;  // where gradients are averaged: one a part
  NodeId accumulate = kNone;    // with buckets, several batches an update: the node that adds a batch to their sum
  NodeId update = kNone;        // the update node, where it is made in parts, which take its place
  // The parts of the update, in the order of the arenas, where each runs as soon as its gradients are complete.
  std::vector<UpdatePart> updates;
  // With buckets, between devices: number of leading elements that are updated while the last bucket is being reduced;
  // 0: the update is one task.
  int64_t early = 0;

  // The task, by its place in Replica::step, that reads the averaged gradients of a bucket.
  size_t reader_of(size_t bucket) const { return buckets.size() + size_t(early > 0 && bucket + 1 == buckets.size()); }

  // The value that buckets are of: a batch's gradients, or their sum if several batches make an update.
  ValueId averaged_gradients(const Loop& training) const;
};

// The node of the training loop that updates the weights, if it may be made in parts, element by element; else kNone.
NodeId find_update_by_element(const PlanInputs& in);

// Memory that the replicas of a device share, by device: averages that updates read, and values that never change.
struct SharedMemory {
  // The strategy's models: z and z_prev, or DiLoCo's z and x, in slots of the sync clock; or empty.
  std::vector<BufferId> models;
  std::vector<BufferId> gradients;  // the mean gradient that updates read instead of the learner's own; or empty
  std::vector<Operand> shared;      // the learners' model that is validated; empty: the device's first learner has it
  std::vector<BufferId> frozen, frozen_lowered;       // empty where nothing is frozen, or nothing reads it in bfloat16
  std::vector<MovingAverageBuffers> moving_averages;  // of the weights, on devices that validate; empty without

  // Adds the places of a loop's frozen values on a device to `given`.
  void place_frozen(const Loop& loop, int32_t device, std::vector<std::pair<ValueId, Operand>>& given) const;
};
// That of the strategy, of moving averages and of what is frozen.
SharedMemory add_shared_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks);

// The task that tells the observer about training.
TaskId add_report(PlanBuilder& builder, const Clocks& clocks, const Lanes& lanes);

// The plan so far: the input of the phases that follow.
struct PlanSoFar {
  PlanBuilder& builder;
  const PlanInputs& in;
  const Clocks& clocks;
  const Lanes& lanes;
  const SharedMemory& memory;
  const std::vector<Replica>& learners;
  // By device, the task after which the learners of all hosts have one model. Strategy::add_tasks() fills it if hosts
  // average apart.
  std::vector<TaskId>& met;
};

// Adds the learners, in order, with their readers and steps, to the plan and to `learners`, which are the plan's;
// `report` gets their sums.
void add_learners(const PlanSoFar& plan, const StepCut& cut, TaskId report, std::vector<Replica>& learners);

// Validation with its readers and snapshots, recalibration included. Fills in the plan's handles of both. `averaged` is
// what Strategy::add_tasks() returned.
void add_validation(const PlanSoFar& plan, const std::vector<TaskId>& averaged);

// Parts that phases share.

// For each value the base whose memory it shares: through views, in-place outputs, carries, and
// outputs that are written over an input that nothing reads afterwards.
Table<ValueId, View> shared_storage(const Graph& graph);

// Pinned slots of each copy to the host: one is written while the other is read.
inline constexpr int32_t kReadBackSlots = 2;

// Sums or averages operands, one per device, in place: a task on a lane of collectives. The caller adds its edges.
TaskId add_all_reduce(PlanBuilder& builder, LaneId lane, const std::string& name, ClockId clock,
                      const std::vector<Term>& operands, bool mean);
// Adds the moving average's memory on each device that validates, if the program asks for a moving average.
std::vector<MovingAverageBuffers> add_moving_average_memory(PlanBuilder& builder, const PlanInputs& in);
// Appends a node to `task` that updates the device's moving average with `model` at each instance. Does nothing if the
// device has no moving average.
void add_moving_average(PlanBuilder& builder, const PlanInputs& in, const SharedMemory& memory, int32_t device,
                        TaskId task, const Term& model);
// A device's learners.
std::vector<const Replica*> on_device(const std::vector<Replica>& learners, int32_t device);

}  // namespace arbalest
