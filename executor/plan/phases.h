#pragma once
// The phases of make_plan(), in their order. Each is a function of the program, the request and what the phases before
// it returned, and adds its part to the plan.

#include <string>
#include <vector>

#include "executor/plan/plan_builder.h"

namespace arbalest {

// What a plan is made from, and what follows from it alone.
struct PlanInputs {
  const Program& program;
  const PlanRequest& request;

  const Loop& training() const { return program.training(); }
  const Strategy& strategy() const { return request.strategy; }
  bool synchronised() const { return strategy().kind != Strategy::Kind::None; }
  int32_t devices() const { return int32_t(request.devices.size()); }
  int64_t learners() const { return int64_t(request.devices.size()) * request.learners; }  // in all
  std::string device_name(int32_t device) const { return to_string(request.devices[size_t(device)]); }
  // Of `loop`, one of the program's: its graph in Plan::graphs.
  int32_t graph_of(const Loop& loop) const { return int32_t(&loop - program.loops.data()); }
  const TensorType& type_of(ValueId value) const { return training().graph.values[size_t(value)].type; }
};

// Throws GraphError where the options do not fit the program or each other.
void check(const PlanInputs& in);

// Whether compute lanes of a device have a branch: on a GPU that its learners leave room on.
bool has_branches(const PlanInputs& in, int32_t device);

// kNone where the plan has no such clock.
struct Clocks {
  ClockId batch = kNone, report = kNone, sync = kNone, validation = kNone, validation_batch = kNone,
          recalibration_batch = kNone;
  int64_t validations = 0;         // ticks of `validation`
  int64_t validation_every = 0;    // batches from one validation to the next
  int64_t validation_batches = 0;  // of one validation, on each device that takes part
};
Clocks add_clocks(PlanBuilder& builder, const PlanInputs& in);

struct Lanes {
  LaneId host = kNone;
  LaneId collectives = kNone;                        // over all devices, where several synchronise
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
  std::vector<Bucket> buckets;  // Ssgd: one a part
  NodeId accumulate = kNone;    // Ssgd, several batches an update: the node that adds a batch to their sum
  NodeId update = kNone;        // the update node, where it is made in parts, which take its place
  // None: the parts, in the order of the arenas, each as soon as its gradients are there.
  std::vector<UpdatePart> updates;
  // Ssgd between devices: the first so many elements are updated while the last bucket travels; 0: the update is one
  // task.
  int64_t early = 0;

  // Ssgd: the task, by its place in Replica::step, that reads the averaged gradients of a bucket.
  size_t reader_of(size_t bucket) const { return buckets.size() + size_t(early > 0 && bucket + 1 == buckets.size()); }

  // What S-SGD averages: a batch's gradients or, where several make an update, their sum.
  ValueId averaged_gradients(const Loop& training) const;
};
StepCut cut_step(const PlanInputs& in);

// Memory that the replicas of a device share, by device: what averaging writes and updates read, and what never
// changes.
struct SharedMemory {
  std::vector<BufferId> models;                       // Sma: z, two slots of the sync clock
  std::vector<BufferId> gradients;                    // Ssgd with several learners on a device: the mean gradient
  std::vector<BufferId> frozen, frozen_lowered;       // empty where nothing is frozen, or nothing reads it in bfloat16
  std::vector<MovingAverageBuffers> moving_averages;  // of the weights, on devices that validate; empty without

  // Where the frozen values of a loop live on a device, for place().
  void place_frozen(const Loop& loop, int32_t device, std::vector<std::pair<ValueId, Operand>>& given) const;
};
SharedMemory add_shared_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks);

// The task that tells the observer about training.
TaskId add_report(PlanBuilder& builder, const Clocks& clocks, const Lanes& lanes);

// The learners, in order, with their readers and steps; what they sum up goes to `report`.
std::vector<Replica> add_learners(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks, const Lanes& lanes,
                                  const StepCut& cut, const SharedMemory& memory, TaskId report);

// What there is once the learners have been added: what the phases behind them begin with.
struct PlanSoFar {
  PlanBuilder& builder;
  const PlanInputs& in;
  const Clocks& clocks;
  const Lanes& lanes;
  const SharedMemory& memory;
  const std::vector<Replica>& learners;
};

// Averaging of gradients or models. Returns, by device, the task after which its models are averaged: empty unless the
// strategy averages models.
std::vector<TaskId> add_synchronisation(const PlanSoFar& plan, const StepCut& cut);

// Validation with its readers and snapshots, recalibration included. Fills in the plan's handles of both. `averaged` is
// what add_synchronisation() returned.
void add_validation(const PlanSoFar& plan, const std::vector<TaskId>& averaged);

// Parts that phases share.

// For each value the base whose memory it shares: through views, in-place outputs and carries, and where an
// output is written over an input that nothing reads afterwards.
std::vector<View> shared_storage(const Graph& graph);

// source → fill (host) → pinned slots → copy → device slots: the replica's fills, copy and slots. Double buffering and
// read-ahead are the Reuse edges. Of samples that lie on the device a node takes the copy's place.
void add_reader(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop, BatchOrigin origin,
                const std::string& prefix, ClockId clock, Replica& replica);
// Runs nodes [begin, end) of the loop's graph on a device slot, as the next part of the replica's step.
void add_part(PlanBuilder& builder, const PlanInputs& in, const Loop& loop, const Placement& placement,
              const std::string& name, NodeId begin, NodeId end, Replica& replica);
// The same nodes as a further piece of `task`, a part of the replica's step.
void add_launches(PlanBuilder& builder, const PlanInputs& in, const Loop& loop, const Placement& placement, TaskId task,
                  NodeId begin, NodeId end);
// Ties the parts of a step to each other and to their batch.
void close_step(PlanBuilder& builder, const PlanInputs& in, const Replica& replica);
// What the replica sums up and keeps goes to the host at the ticks of `clock`, coarser than the step's.
void add_read_back(PlanBuilder& builder, const Lanes& lanes, const Loop& loop, const std::string& prefix, ClockId clock,
                   Replica& replica);
// What the loop hands out goes to the host with every batch.
void add_hand_out(PlanBuilder& builder, const PlanInputs& in, const Lanes& lanes, const Loop& loop,
                  const std::string& prefix, Replica& replica);
// Pinned slots of what travels from devices to the host: one is written while the other is read.
inline constexpr int32_t kReadBackSlots = 2;

// Sums or averages operands, one a device, in their place: a task on the collectives' lane. Edges are the caller's.
TaskId add_all_reduce(PlanBuilder& builder, const Lanes& lanes, const std::string& name, ClockId clock,
                      const std::vector<Term>& operands, bool mean);
// Memory of the moving average, where the program asks for one, on each device that validates.
std::vector<MovingAverageBuffers> add_moving_average_memory(PlanBuilder& builder, const PlanInputs& in);
// Where the device has a moving average, it takes in `model` at each instance of `task`, whose last node it becomes.
void add_moving_average(PlanBuilder& builder, const PlanInputs& in, const SharedMemory& memory, int32_t device,
                        TaskId task, const Term& model);
// A device's learners.
std::vector<const Replica*> on_device(const std::vector<Replica>& learners, int32_t device);

}  // namespace arbalest
