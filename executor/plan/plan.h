// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan: the tasks of one training run and the edges between them, cyclic, for given devices, learners and precision.
// Flat arrays, immutable once made, printable, and independent of any device being present.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/kernel.h"
#include "passes/program.h"

namespace arbalest {

using TaskId = Id<struct TaskTag>;
using EdgeId = Id<struct EdgeTag>;
using LaneId = Id<struct LaneTag>;
using ClockId = Id<struct ClockTag>;
using RelationId = Id<struct RelationTag>;
using BufferId = Id<struct BufferTag>;
using ArenaId = Id<struct ArenaTag>;

// A clock counts instances: tick 0, 1, … ticks − 1. Every task belongs to one; instance i of a task is its clock's tick
// i.
struct Clock {
  std::string name;  // "batch", "epoch", "validation batch", …
  int64_t ticks = 0;
};

// A coarse clock's ticks group a fine clock's. `group` fine ticks make a coarse one. Every `period` fine ticks a group
// is cut short and a new one begins (the end of an epoch forces a sync). group ≤ period.
struct ClockRelation {
  ClockId fine = kNone, coarse = kNone;
  int64_t group = 1, period = 1;

  int64_t groups_per_period() const { return (period + group - 1) / group; }
  int64_t coarse_of(int64_t fine_tick) const {
    return fine_tick / period * groups_per_period() + fine_tick % period / group;
  }
  int64_t last_of(int64_t coarse_tick) const {
    const int64_t end = (coarse_tick % groups_per_period() + 1) * group;
    return coarse_tick / groups_per_period() * period + (end < period ? end : period) - 1;
  }
};

// An edge u → v of distance d says which instance of u an instance of v needs. Instances below 0 count as complete.
//   same clock:            (v, i) needs (u, i − d)
//   u's clock the finer:   (v, n) needs (u, last_of(n) − d)       d in ticks of u
//   u's clock the coarser: (v, i) needs (u, coarse_of(i) − d)     d in ticks of u
struct Edge {
  // Issued: u is in its device queue; stream order or an event carries the rest. Done: u has ended.
  enum class Needs : uint8_t { Issued, Done };
  enum class Why : uint8_t { Data, Reuse, Lane, Self, Pace, Clock };

  TaskId from = kNone, to = kNone;
  int64_t distance = 0;
  RelationId relation = kNone;  // if the clocks differ
  Needs needs = Needs::Done;
  Why why = Why::Data;
  std::string what;  // the buffer or value the edge protects, for reading
};

struct PlanDevice {
  enum class Kind : uint8_t { Cpu, Cuda };
  Kind kind = Kind::Cpu;
  int index = 0;
  int32_t rank = 0;         // of the process that binds it
  std::string host;         // how plans of several processes name that process; "" otherwise
  int32_t host_number = 0;  // of the machine that it is in, from 0 on: processes of one machine have the same
  bool operator==(const PlanDevice&) const = default;
};
std::string to_string(const PlanDevice& device);  // "cpu:0", "cuda:3", "node07/cuda:3"

// A queue of tasks. Host tasks run on threads of the process, several at once; a device lane executes its tasks in
// order.
struct Lane {
  // Averaging: of the replicas of one device. Collectives: over all devices, or those of a host.
  enum class Kind : uint8_t { Host, Compute, CopyIn, CopyOut, Validate, Averaging, Collectives };
  Kind kind = Kind::Host;
  int32_t device = kNone;   // index into Plan::devices; kNone for the host, and for collectives over all devices
  int32_t learner = kNone;  // of a Compute lane
  std::string name;         // "host", "cuda:0/learner 1", "cuda:0/copy in"
  // Collectives over devices of one host alone: these devices, by their index in the plan of all processes. Otherwise
  // empty.
  std::vector<int32_t> spans = {};
};

// One allocation.
struct Arena {
  enum class Memory : uint8_t { Device, Pinned };
  std::string name;  // "cuda:0/learner 0 activations"
  int32_t device = kNone;
  Memory memory = Memory::Device;
  int64_t bytes = 0;
  bool kept = false;  // what it holds is of use to the plans that follow: see KeptArenas
};

// Bytes in an arena; `slots` copies, each `stride` apart. A task's instance uses slot (t + shift) mod slots, where t is
// its tick of the buffer's clock.
struct Buffer {
  std::string name;
  ArenaId arena = kNone;
  int64_t offset = 0;
  int64_t bytes = 0;
  int64_t stride = 0;
  int32_t slots = 1;
  ClockId clock = kNone;  // whose ticks choose the slot; kNone if slots = 1
  // The first and the last node that the buffer is in use for, as positions in their graph; kNone unless its arena is
  // packed by lifetime.
  int32_t first = kNone, last = kNone;
};

struct Operand {
  BufferId buffer = kNone;  // kNone: an operand left out
  int64_t offset = 0;       // bytes into the slot
  int32_t shift = 0;        // 1: the slot that the next instance reads as current
};

// One node bound to memory.
struct Launch {
  int32_t program = 0;  // which graph: index into Plan::graphs
  NodeId node = kNone;
  int32_t first_operand = 0, inputs = 0, outputs = 0;  // into Plan::operands: inputs, then outputs
  bool aside = false;    // runs on the lane's branch, in parallel with later launches as far as memory allows
  ArenaId gaps = kNone;  // the arena, packed by lifetime, in whose gaps it may have its workspace; kNone: in none
};

// Largest number of instances of a host task that may run at once. The dependencies record which of so many have ended.
inline constexpr int32_t kWidest = 32;

struct Task {
  enum class Kind : uint8_t {
    Fill,             // host: the next batch of a source, or a part of it, into a pinned slot
    CopyIn,           // pinned slot → device slot, by a copy or by a node that takes the samples that it names
    Compute,          // a run of nodes on one lane
    Average,          // replicas of one device → their average, by a run of nodes
    Collective,       // over all devices of its lane at once
    Snapshot,         // weights and statistics → validation's copy, by copies and a run of nodes
    CopyOut,          // tallies, or a batch's outputs → pinned
    HandOut,          // host: a batch's outputs to the code that asked for them
    ValidationBegin,  // host: opens a validation
    Report,           // host: training metrics to the log
    ValidationEnd,    // host: metrics of a validation, merged over devices
    Work,             // tests and benchmarks: the caller supplies what it does
  };
  std::string name;  // "cuda:0/learner 0/step"
  Kind kind = Kind::Work;
  LaneId lane{0};
  ClockId clock{0};
  int32_t width = 1;            // instances that may run at once (host tasks)
  int32_t part = 0, parts = 1;  // Fill: which of so many parts of a batch; the first writes the StepScalars too
  bool deferred = false;        // host task: an instance ends by Scheduler::finish(), not with its function
  int32_t every = 1;            // instances of a device task of which only the last has work: see has_work()
  int32_t device = kNone;
  int32_t learner = kNone;                  // global number of the learner
  int32_t first_launch = 0, launches = 0;   // Compute
  int32_t first_operand = 0, operands = 0;  // others: pairs (from, to) of a copy, or the slot
  BufferId scalars = kNone;                 // the slot that holds this task's StepScalars
  int64_t reduced_bytes = 0;                // Collective: of the array on each device
  double microseconds = 0;                  // expected duration, for the critical cycle; 0: unknown
};

// True if the instance has work: only the last of every `every` instances has (every − 1, 2 · every − 1, …).
inline bool has_work(int64_t instance, int32_t every) {
  return instance % every == every - 1;
}

// The place of each value of a loop's graph; buffer kNone for values without memory of their own.
struct Placement {
  Table<ValueId, Operand> of;
  ArenaId activations = kNone;  // the arena that is packed by lifetime
};

// A loop's graph on a device with memory of its own, the tasks that bring it batches and the task that reads its sums.
// This is a learner's training, or a device's part in validation or recalibration. Its step is one task, or several if
// others have to come in between.
struct Replica {
  int32_t device = 0;
  int32_t learner = kNone;  // global number; kNone unless the loop trains
  int32_t place = 0;        // among the loop's replicas in the plan of all processes
  LaneId lane = kNone;
  std::vector<TaskId> fills;  // a batch from its source to a pinned slot, part by part
  TaskId copy = kNone;        // from there to a device slot
  BufferId slots = kNone;     // on the device, of batches
  Placement placement;
  std::vector<TaskId> step;
  TaskId read_back = kNone;       // copies measurements to the host; kNone if the loop measures nothing
  BufferId tally = kNone;         // target of that copy: pinned, in slots of its clock
  std::vector<BufferId> rows;     // the same for each metric that keeps rows
  TaskId hand_out = kNone;        // gives each batch's outputs to the host; kNone if the loop has none
  std::vector<BufferId> outputs;  // what it reads: pinned, in slots of the step's clock

  TaskId first() const { return step.front(); }
  TaskId update() const { return step.back(); }  // the last task of it, if it is in several
};

struct LoopPlan {
  LoopRole role = LoopRole::Train;
  int32_t graph = 0;              // index into Plan::graphs
  ClockId clock = kNone;          // ticks with each batch
  std::vector<Replica> replicas;  // Train: by learner; otherwise by device
  int32_t everywhere = 0;         // number of replicas in the plan of all processes
};

// The samples of a split in a device's memory, one after the other: what batches are made of there
// (BatchOrigin::Samples). Training and recalibration read the same split.
struct SamplesOnDevice {
  bool validation = false;
  int32_t device = 0;
  ArenaId arena = kNone;
  std::vector<BufferId> fields;  // by Loop::fields: samples × bytes of one; kNone if no loop reads it
};

// A device's moving average of the weights: float[P], and int64[2] as ops/optim/moving_average.h has it.
struct MovingAverageBuffers {
  BufferId weights = kNone, progress = kNone;
};

// The tasks, buffers and relations that code needs to run a plan; names are only for people to read. kNone, or empty,
// for those that the plan does not have.
struct PlanHandles {
  std::vector<LoopPlan> loops;  // that run, in the program's order
  TaskId report = kNone, validation_begin = kNone, validation_end = kNone;
  // Relations of the base clock to coarser ones.
  RelationId by_report = kNone, by_sync = kNone, by_hosts = kNone, by_validation = kNone;
  std::vector<BufferId> averages;                          // by device: z and z_prev in slots of the sync clock
  std::vector<MovingAverageBuffers> moving_averages;       // by device
  BufferId kept_weights = kNone, kept_statistics = kNone;  // on the host: the model validated last
  std::vector<SamplesOnDevice> samples;

  const LoopPlan* find(LoopRole role) const;  // nullptr: the plan does not run that loop
};

struct Plan {
  std::vector<PlanDevice> devices;
  // The rank of each device of the whole plan, if this is a process's part of one (plan_part.h); otherwise empty.
  std::vector<int> ranks_of_devices;
  Table<ClockId, Clock> clocks;
  Table<RelationId, ClockRelation> relations;
  Table<LaneId, Lane> lanes;
  Table<TaskId, Task> tasks;
  Table<EdgeId, Edge> edges;
  Table<ArenaId, Arena> arenas;
  Table<BufferId, Buffer> buffers;
  std::vector<Operand> operands;
  std::vector<Launch> launches;
  // Those of the program's loops in their order. Then comes "synchronisation" if averaging, moving averages or
  // validation add nodes, updates are made in parts, or batches are made of samples on a device.
  std::vector<Graph> graphs;
  PlanHandles handles;

  bool on_host(TaskId task) const { return lanes[tasks[task].lane].kind == Lane::Kind::Host; }
  // A handle's relation; nullptr for kNone.
  const ClockRelation* relation(RelationId id) const { return id == kNone ? nullptr : &relations[id]; }
};

// A state in which a plan stands still between two iterations: the number of complete iterations of the base clock and
// of validations that have ended. Everything else about the state follows from the plan: see Dependencies.
struct PlanPosition {
  int64_t iterations = 0, validations = 0;
};

// A cycle of the plan: its edges in order, what it costs and how far it reaches.
struct Cycle {
  std::vector<EdgeId> edges;
  double microseconds = 0;  // Σ of its tasks' durations over one turn
  double lag = 0;           // iterations of the base clock (clock 0) from one turn to the next, on average
  double bound() const { return microseconds / lag; }  // no schedule is faster, per iteration of the base clock
};

// The instance of edge.from that instance n ≥ 0 of edge.to needs; negative: none.
int64_t needed_instance(const Plan& plan, const Edge& edge, int64_t n);

// How many instances v may start, on account of edge e, once u has completed `completed` instances. Never decreases.
int64_t allowed_instances(const Plan& plan, const Edge& edge, int64_t completed);

// Proves the plan live, or throws GraphError that names a cycle without lag ("step → copy → step") or a malformed edge.
// That is one of clocks without a relation, of negative distance, or an Issued one from or to a host task.
void verify(const Plan& plan);

// The cycle with the largest bound(). Empty if no task has a duration.
Cycle critical_cycle(const Plan& plan);

// For each edge u → v, the largest number of instances by which u can run ahead of those that v has started on. That
// many events or slots of u are needed. Throws GraphError if an edge lies on no cycle, so that nothing bounds it.
Table<EdgeId, int64_t> edge_leads(const Plan& plan);

}  // namespace arbalest
