#include "executor/make_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/op.h"
#include "io/data_order.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

// Pinned slots of what travels from devices to the log: one is written while the other is read.
constexpr int32_t kReadBackSlots = 2;

class Lowering {
 public:
  Lowering(const Program& program, const PlanRequest& request) : program_(program), request_(request) {}

  Plan run() {
    check();
    make_clocks();
    make_lanes();
    plan_.graphs.push_back(program_.training.graph);
    if (program_.validation) plan_.graphs.push_back(program_.validation->graph);
    report_ = add_task(Task::Kind::Report, "report", host_, report_clock_);
    add_edge(report_, report_, 1, Needs::Done, Why::Self);
    for (int32_t device = 0; device < int32_t(plan_.devices.size()); ++device) {
      for (int32_t i = 0; i < request_.learners; ++i) add_learner(device, i);
    }
    if (validations_ > 0) add_validation();
    verify(plan_);
    return std::move(plan_);
  }

 private:
  struct Reader {  // the way of a batch: from its source to a device slot
    TaskId fill = kNone, copy = kNone;
    BufferId slot = kNone;
  };

  void check() const {
    if (request_.devices.empty()) throw GraphError("no device is given");
    if (request_.learners < 1)
      throw GraphError(fmt::format("{} learners per device, expected at least 1", request_.learners));
    if (request_.run_ahead < 1)
      throw GraphError(fmt::format("run-ahead is {}, expected at least 1", request_.run_ahead));
    if (request_.epochs < 1 && request_.iterations < 1) {
      throw GraphError(fmt::format("{} epochs to train, expected at least 1", request_.epochs));
    }
  }

  void make_clocks() {
    const int64_t learners = int64_t(request_.devices.size()) * request_.learners;
    const int64_t rounds = rounds_per_epoch(request_.training_samples, learners, program_.training.batch);
    constexpr int64_t kMost = int64_t{1} << 40;  // ticks of any clock
    if (request_.epochs > kMost / rounds || request_.iterations > kMost) {
      throw GraphError(fmt::format("{} epochs of {} iterations, or {} iterations, are more than a run can count",
                                   request_.epochs, rounds, request_.iterations));
    }
    const int64_t iterations = request_.iterations > 0 ? request_.iterations : request_.epochs * rounds;
    const int64_t epochs = (iterations + rounds - 1) / rounds;
    batch_ = add_clock("batch", iterations);
    const int64_t within = std::min(rounds, iterations);
    const int64_t every = request_.report_every > 0 ? request_.report_every : std::clamp<int64_t>(within / 20, 1, 100);
    report_clock_ = add_coarser("report", batch_, std::min(every, within), rounds).first;
    if (!program_.validation) return;
    // Every so many epochs, and at the end: where the last group is short, the whole run is one period.
    const int64_t every_epochs = std::min(program_.validate_every, epochs);
    const int64_t period = epochs % every_epochs == 0 ? every_epochs : epochs;
    std::tie(validation_, by_validation_) = add_coarser("validation", batch_, every_epochs * rounds, period * rounds);
    validations_ = plan_.clocks[size_t(validation_)].ticks;
    if (request_.validation_samples < 1) throw GraphError("the validation split holds no samples");
    const int64_t batch = program_.validation->batch;
    const int64_t batches = validation_batches(request_.validation_samples, batch);
    validation_batch_ = add_clock("validation batch", batches * validations_);
    plan_.relations.push_back({validation_batch_, validation_, batches, batches});
    by_validation_batch_ = int32_t(plan_.relations.size()) - 1;
  }

  ClockId add_clock(std::string name, int64_t ticks) {
    plan_.clocks.push_back({std::move(name), ticks});
    return ClockId(plan_.clocks.size() - 1);
  }

  // A clock that ticks when a group of `fine`'s ticks is complete.
  std::pair<ClockId, int32_t> add_coarser(std::string name, ClockId fine, int64_t group, int64_t period) {
    ClockRelation relation{fine, ClockId(plan_.clocks.size()), group, period};
    const int64_t ticks = plan_.clocks[size_t(fine)].ticks;
    int64_t complete = relation.coarse_of(ticks - 1);
    if (relation.last_of(complete) < ticks) ++complete;
    add_clock(std::move(name), complete);
    plan_.relations.push_back(relation);
    return {relation.coarse, int32_t(plan_.relations.size()) - 1};
  }

  void make_lanes() {
    plan_.devices = request_.devices;
    host_ = add_lane(Lane::Kind::Host, kNone, kNone, "host");
    for (int32_t d = 0; d < int32_t(plan_.devices.size()); ++d) {
      const std::string name = to_string(plan_.devices[size_t(d)]);
      copy_in_.push_back(add_lane(Lane::Kind::CopyIn, d, kNone, name + "/copy in"));
      copy_out_.push_back(add_lane(Lane::Kind::CopyOut, d, kNone, name + "/copy out"));
    }
  }

  LaneId add_lane(Lane::Kind kind, int32_t device, int32_t learner, std::string name) {
    plan_.lanes.push_back({kind, device, learner, std::move(name)});
    return LaneId(plan_.lanes.size() - 1);
  }

  TaskId add_task(Task::Kind kind, std::string name, LaneId lane, ClockId clock, int32_t width = 1) {
    Task task;
    task.kind = kind;
    task.name = std::move(name);
    task.lane = lane;
    task.clock = clock;
    task.width = width;
    task.device = plan_.lanes[size_t(lane)].device;
    task.first_launch = int32_t(plan_.launches.size());
    task.first_operand = int32_t(plan_.operands.size());
    plan_.tasks.push_back(std::move(task));
    return TaskId(plan_.tasks.size() - 1);
  }

  void add_edge(TaskId from, TaskId to, int64_t distance, Needs needs, Why why, std::string what = "") {
    const ClockId a = plan_.tasks[size_t(from)].clock, b = plan_.tasks[size_t(to)].clock;
    int32_t relation = kNone;
    for (size_t r = 0; r < plan_.relations.size(); ++r) {
      const ClockRelation& known = plan_.relations[r];
      if ((known.fine == a && known.coarse == b) || (known.fine == b && known.coarse == a)) relation = int32_t(r);
    }
    plan_.edges.push_back({from, to, distance, relation, needs, why, std::move(what)});
  }

  void add_operands(TaskId task, std::initializer_list<BufferId> buffers) {
    plan_.tasks[size_t(task)].first_operand = int32_t(plan_.operands.size());
    plan_.tasks[size_t(task)].operands = int32_t(buffers.size());
    for (const BufferId buffer : buffers) plan_.operands.push_back({buffer, 0, 0});
  }

  ArenaId add_arena(std::string name, int32_t device, Arena::Memory memory) {
    plan_.arenas.push_back({std::move(name), device, memory, 0});
    return ArenaId(plan_.arenas.size() - 1);
  }

  // source → fill (host) → pinned slots → copy → device slots. Double buffering and read-ahead are the Reuse edges.
  Reader add_reader(const Loop& loop, bool resident, const std::string& prefix, int32_t device, ClockId clock) {
    Reader reader;
    const int64_t bytes = batch_layout(loop, resident).bytes;
    const auto depth = int32_t(loop.depth);
    const ArenaId pinned = add_arena(prefix + "/pinned batches", device, Arena::Memory::Pinned);
    const ArenaId resident_slots = add_arena(prefix + "/batches", device, Arena::Memory::Device);
    const BufferId from = add_buffer(plan_, pinned, prefix + "/pinned batch slots", bytes, depth, clock);
    reader.slot = add_buffer(plan_, resident_slots, prefix + "/batch slots", bytes, request_.device_slots, clock);

    reader.fill = add_task(Task::Kind::Fill, prefix + "/fill", host_, clock, std::min(depth, 4));
    add_operands(reader.fill, {from});
    plan_.tasks[size_t(reader.fill)].device = device;
    reader.copy = add_task(Task::Kind::CopyIn, prefix + "/copy in", copy_in_[size_t(device)], clock);
    add_operands(reader.copy, {from, reader.slot});

    const int32_t width = plan_.tasks[size_t(reader.fill)].width;
    add_edge(reader.fill, reader.fill, width, Needs::Done, Why::Self);
    add_edge(reader.fill, reader.copy, 0, Needs::Done, Why::Data, "pinned batch");
    add_edge(reader.copy, reader.fill, depth, Needs::Done, Why::Reuse, "pinned batch");
    add_edge(reader.copy, reader.copy, 1, Needs::Issued, Why::Lane);
    return reader;
  }

  // The task that runs a loop's graph on a device slot.
  TaskId add_compute(const Loop& loop, int32_t program, const Placement& placement, const std::string& name,
                     LaneId lane, const Reader& reader) {
    const TaskId task = add_task(Task::Kind::Compute, name, lane, plan_.tasks[size_t(reader.copy)].clock);
    plan_.tasks[size_t(task)].scalars = reader.slot;
    for (size_t n = 0; n < loop.graph.nodes.size(); ++n) {
      const Node& node = loop.graph.nodes[n];
      Launch launch{program, NodeId(n), int32_t(plan_.operands.size()), int32_t(node.inputs.size()),
                    int32_t(node.outputs.size())};
      for (const ValueId v : node.inputs) plan_.operands.push_back(v == kNone ? Operand{} : placement.of[size_t(v)]);
      for (const ValueId v : node.outputs) plan_.operands.push_back(v == kNone ? Operand{} : placement.of[size_t(v)]);
      plan_.launches.push_back(launch);
    }
    plan_.tasks[size_t(task)].launches = int32_t(loop.graph.nodes.size());
    add_edge(reader.copy, task, 0, Needs::Issued, Why::Data, "batch");
    add_edge(task, reader.copy, request_.device_slots, Needs::Issued, Why::Reuse, "batch");
    add_edge(task, reader.copy, request_.run_ahead, Needs::Done, Why::Pace);
    add_edge(task, task, 1, Needs::Issued, Why::Lane);
    return task;
  }

  // What a device sums up goes to the host at the ticks of `clock`, coarser than the summing task's.
  TaskId add_read_back(TaskId sum, const Operand& tally, int64_t bytes, const std::string& prefix, int32_t device,
                       ClockId clock) {
    const ArenaId pinned = add_arena(prefix + "/pinned tally", device, Arena::Memory::Pinned);
    const BufferId to = add_buffer(plan_, pinned, prefix + "/pinned tally", bytes, kReadBackSlots, clock);
    const TaskId copy = add_task(Task::Kind::CopyOut, prefix + "/copy out", copy_out_[size_t(device)], clock);
    add_operands(copy, {tally.buffer, to});
    add_edge(sum, copy, 0, Needs::Issued, Why::Data, "tally");
    add_edge(copy, sum, 1, Needs::Issued, Why::Reuse, "tally");
    add_edge(copy, copy, 1, Needs::Issued, Why::Lane);
    return copy;
  }

  void add_learner(int32_t device, int32_t index) {
    const int32_t learner = device * request_.learners + index;
    const std::string prefix = fmt::format("{}/learner {}", to_string(plan_.devices[size_t(device)]), learner);
    const Loop& loop = program_.training;
    const LaneId lane = add_lane(Lane::Kind::Compute, device, learner, prefix);
    const Reader reader = add_reader(loop, request_.training_resident, prefix, device, batch_);
    const BatchLayout layout = batch_layout(loop, request_.training_resident);
    const Placement placement = place(plan_, loop, prefix, device, reader.slot, layout);
    const TaskId step = add_compute(loop, 0, placement, prefix + "/step", lane, reader);
    const auto tally = size_t(loop.arenas.tally);
    const TaskId copy =
        add_read_back(step, placement.of[tally], loop.graph.values[tally].type.bytes(), prefix, device, report_clock_);
    for (const TaskId task : {reader.fill, reader.copy, step, copy}) plan_.tasks[size_t(task)].learner = learner;
    add_edge(copy, report_, 0, Needs::Done, Why::Data, "tally");
    add_edge(report_, copy, kReadBackSlots, Needs::Done, Why::Reuse, "pinned tally");
    const auto of = [&](ValueId v) { return v == kNone ? Operand{} : placement.of[size_t(v)]; };
    replicas_.push_back({step, of(loop.arenas.weights), of(loop.arenas.weights_lowered), of(loop.arenas.statistics)});
  }

  // Learners without synchronisation are models of their own: what is validated is the first one, on its device.
  void add_validation() {
    const Loop& loop = *program_.validation;
    const Replica& replica = replicas_.front();
    const int32_t device = 0;
    const std::string prefix = to_string(plan_.devices[0]) + "/validation";
    const LaneId lane = add_lane(Lane::Kind::Validate, device, kNone, prefix);

    const TaskId begin = add_task(Task::Kind::ValidationBegin, "validation begins", host_, validation_);
    const int64_t lead = std::min(request_.validation_lead, plan_.relations[size_t(by_validation_)].group - 1);
    add_edge(replica.step, begin, lead, Needs::Done, Why::Clock, fmt::format("{} iterations before the end", lead));

    const Reader reader = add_reader(loop, request_.validation_resident, prefix, device, validation_batch_);
    const Placement placement =
        place(plan_, loop, prefix, device, reader.slot, batch_layout(loop, request_.validation_resident));
    add_edge(begin, reader.fill, 0, Needs::Done, Why::Clock);

    const TaskId snapshot = add_task(Task::Kind::Snapshot, prefix + "/snapshot", lane, validation_);
    std::vector<std::pair<Operand, ValueId>> copies = {{replica.weights, loop.arenas.weights},
                                                       {replica.weights_lowered, loop.arenas.weights_lowered},
                                                       {replica.statistics, loop.arenas.statistics}};
    std::erase_if(copies, [](const auto& copy) { return copy.first.buffer == kNone || copy.second == kNone; });
    plan_.tasks[size_t(snapshot)].first_operand = int32_t(plan_.operands.size());
    plan_.tasks[size_t(snapshot)].operands = int32_t(copies.size()) * 2;
    for (const auto& [from, to] : copies) {
      plan_.operands.push_back(from);
      plan_.operands.push_back(placement.of[size_t(to)]);
    }
    add_edge(replica.step, snapshot, 0, Needs::Issued, Why::Data, "weights");
    add_edge(snapshot, replica.step, 1, Needs::Issued, Why::Reuse, "weights");
    add_edge(snapshot, snapshot, 1, Needs::Issued, Why::Lane);

    const TaskId evaluate = add_compute(loop, 1, placement, prefix + "/evaluate", lane, reader);
    const int64_t batches = plan_.relations[size_t(by_validation_batch_)].group;
    add_edge(snapshot, evaluate, 0, Needs::Issued, Why::Data, "weights");
    add_edge(evaluate, snapshot, batches, Needs::Issued, Why::Reuse, "weights");

    const auto tally = size_t(loop.arenas.tally);
    const TaskId copy = add_read_back(evaluate, placement.of[tally], loop.graph.values[tally].type.bytes(), prefix,
                                      device, validation_);
    const TaskId end = add_task(Task::Kind::ValidationEnd, "validation ends", host_, validation_);
    add_edge(copy, end, 0, Needs::Done, Why::Data, "tally");
    add_edge(end, copy, kReadBackSlots, Needs::Done, Why::Reuse, "pinned tally");
    add_edge(end, begin, 1, Needs::Done, Why::Self);
    add_edge(end, end, 1, Needs::Done, Why::Self);
    add_edge(begin, begin, 1, Needs::Done, Why::Self);
  }

  struct Replica {
    TaskId step = kNone;
    Operand weights, weights_lowered, statistics;
  };

  const Program& program_;
  const PlanRequest& request_;
  Plan plan_;
  ClockId batch_ = kNone, report_clock_ = kNone, validation_ = kNone, validation_batch_ = kNone;
  int32_t by_validation_ = kNone, by_validation_batch_ = kNone;
  int64_t validations_ = 0;
  LaneId host_ = kNone;
  std::vector<LaneId> copy_in_, copy_out_;
  TaskId report_ = kNone;
  std::vector<Replica> replicas_;
};

}  // namespace

Plan make_plan(const Program& program, const PlanRequest& request) {
  return Lowering(program, request).run();
}

}  // namespace arbalest
