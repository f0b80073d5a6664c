// SPDX-License-Identifier: Apache-2.0

// Validation: tasks of the same plan, on a lane of its own on every device that has the model all learners share.

#include <fmt/format.h>

#include <algorithm>

#include "executor/plan/replica_builder.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Needs = Edge::Needs;
using Why = Edge::Why;

struct ValidationInputs : PlanSoFar {
  const std::vector<TaskId>& averaged;  // by device
  const Loop& loop;                     // Validate
  const Loop* recalibration;
};

// A device's part in validation.
struct Validator {
  ReplicaBuilder parts;
  TaskId snapshot = kNone;
  TaskId ready = kNone;  // after which the model is complete: the snapshot, or what follows recalibration

  const Replica& replica() const { return parts.replica; }  // its step evaluates a batch
  TaskId evaluate() const { return replica().update(); }
};

// The learners' statistics summed over all devices.
struct GatheredStatistics {
  std::vector<Term> sums;  // one a device
  TaskId after = kNone;    // which they hold the whole; kNone if nothing is gathered
};

Term term_of(const Loop& loop, const Placement& placement, ValueId value) {
  return {placement.of[value], loop.graph.values[value].type};
}

// Over several devices: each sums the statistics of its learners, then all sum those.
GatheredStatistics gather_statistics(const ValidationInputs& given) {
  PlanBuilder& builder = given.builder;
  const ValueId statistics = given.in.training().arenas.statistics;
  const bool wanted = given.in.synchronised() && statistics != kNone && !given.recalibration;
  if (!wanted || given.in.devices() == 1) return {};
  GatheredStatistics gathered;
  std::vector<TaskId> tasks;
  const TensorType type{DataType::Float64, {given.in.type_of(statistics).elements()}};
  for (int32_t d = 0; d < given.in.devices(); ++d) {
    const std::string name = given.in.device_name(d) + "/sum statistics";
    std::vector<Term> terms;
    for (const Replica* replica : on_device(given.learners, d)) {
      terms.push_back({replica->placement.of[statistics], {DataType::Float32, type.shape}});
    }
    const TaskId task =
        builder.add_task(Task::Kind::Average, name, given.lanes.averaging[size_t(d)], given.clocks.validation);
    gathered.sums.push_back({{builder.add_device_buffer(name, d, type.bytes(), 1, kNone), 0, 0}, type});
    builder.add_node(task, op::MergeStatistics, name, terms, {gathered.sums.back()},
                     {{"gather", int64_t{1}}, {"replicas", int64_t{0}}});
    builder.add_lane_order(task);
    for (const Replica* replica : on_device(given.learners, d)) {
      builder.add_edge(replica->update(), task, 0, Needs::Issued, Why::Data, "statistics");
      builder.add_edge(task, replica->first(), 1, Needs::Issued, Why::Reuse, "statistics");
    }
    tasks.push_back(task);
  }
  gathered.after = add_all_reduce(builder, given.lanes.validation_collectives, "all-reduce statistics",
                                  given.clocks.validation, gathered.sums, false);
  for (const TaskId task : tasks) {
    builder.add_edge(task, gathered.after, 0, Needs::Issued, Why::Data, "sum of statistics");
  }
  return gathered;
}

// The snapshot's weights: made from their moving average or the learners' average, if there is one, else copied from
// the first learner, whose model all then have.
void snapshot_weights(const ValidationInputs& given, const Validator& validator, std::vector<Operand>& copies) {
  const ArenaValues &from = given.in.training().arenas, &to = given.loop.arenas;
  const int32_t device = validator.replica().device;
  const Placement& placement = validator.replica().placement;
  const bool averaged = !given.memory.moving_averages.empty() || !given.memory.shared.empty();
  if (!averaged) {
    const Placement& first = on_device(given.learners, device).front()->placement;
    copies.insert(copies.end(), {first.of[from.weights], placement.of[to.weights]});
    if (from.weights_lowered == kNone || to.weights_lowered == kNone) return;
    copies.insert(copies.end(), {first.of[from.weights_lowered], placement.of[to.weights_lowered]});
    return;
  }
  std::vector<Term> targets = {term_of(given.loop, placement, to.weights)};
  if (to.weights_lowered != kNone) targets.push_back(term_of(given.loop, placement, to.weights_lowered));
  const auto lowered = int64_t(targets.size()) - 1;
  const Operand source = given.memory.moving_averages.empty()
                             ? given.memory.shared[size_t(device)]
                             : Operand{given.memory.moving_averages[size_t(device)].weights, 0, 0};
  const Term average{source, given.in.type_of(from.weights)};
  given.builder.add_node(validator.snapshot, op::Combine, given.in.device_name(device) + "/validation/weights",
                         {average}, targets, {{"coefficients", std::vector<double>{1}}, {"lowered", lowered}});
}

// And its statistics, unless recalibration makes them.
void snapshot_statistics(const ValidationInputs& given, const GatheredStatistics& gathered, const Validator& validator,
                         std::vector<Operand>& copies) {
  const ValueId from = given.in.training().arenas.statistics, to = given.loop.arenas.statistics;
  if (from == kNone || to == kNone || given.recalibration) return;
  const int32_t device = validator.replica().device;
  const Placement& placement = validator.replica().placement;
  const std::vector<const Replica*> learners = on_device(given.learners, device);
  if (!given.in.synchronised()) {
    copies.insert(copies.end(), {learners.front()->placement.of[from], placement.of[to]});
    return;
  }
  const bool here = gathered.after == kNone;  // all learners are of this device
  std::vector<Term> terms;
  for (const Replica* learner : learners) terms.push_back(term_of(given.in.training(), learner->placement, from));
  if (!here) terms = {gathered.sums[size_t(device)]};
  given.builder.add_node(
      validator.snapshot, op::MergeStatistics, given.in.device_name(device) + "/validation/statistics", terms,
      {term_of(given.loop, placement, to)}, {{"gather", int64_t{here}}, {"replicas", given.in.learners()}});
}

// The model as it is at the end of the epoch: copied, or made from what the learners hold.
void add_snapshot(const ValidationInputs& given, const GatheredStatistics& gathered, Validator& validator) {
  PlanBuilder& builder = given.builder;
  const int32_t device = validator.replica().device;
  const std::vector<const Replica*> learners = on_device(given.learners, device);
  const TaskId snapshot = builder.add_task(Task::Kind::Snapshot, given.in.device_name(device) + "/validation/snapshot",
                                           validator.replica().lane, given.clocks.validation);
  validator.snapshot = validator.ready = snapshot;
  std::vector<Operand> copies;  // from, to
  snapshot_weights(given, validator, copies);
  snapshot_statistics(given, gathered, validator, copies);
  builder.add_operands(snapshot, copies);
  for (const Replica* learner : learners) {
    const bool read = learner == learners.front() || gathered.after == kNone;
    if (!read) continue;
    builder.add_edge(learner->update(), snapshot, 0, Needs::Issued, Why::Data, "model");
    builder.add_edge(snapshot, learner->first(), 1, Needs::Issued, Why::Reuse, "model");
  }
  if (!given.averaged.empty()) {
    const TaskId averaged = given.averaged[size_t(device)];
    builder.add_edge(averaged, snapshot, 0, Needs::Issued, Why::Data, "average");
    builder.add_edge(snapshot, averaged, 1, Needs::Issued, Why::Reuse, "average");
  }
  if (!given.met.empty()) {
    const TaskId met = given.met[size_t(device)];
    builder.add_edge(met, snapshot, 0, Needs::Issued, Why::Data, "average of hosts");
    builder.add_edge(snapshot, met, 1, Needs::Issued, Why::Reuse, "average of hosts");
  }
  if (gathered.after != kNone) {
    builder.add_edge(gathered.after, snapshot, 0, Needs::Issued, Why::Data, "sum of statistics");
    builder.add_edge(snapshot, gathered.after, 1, Needs::Issued, Why::Reuse, "sum of statistics");
  }
  builder.add_lane_order(snapshot);
}

Validator add_validator(const ValidationInputs& given, int32_t device, TaskId begin,
                        const GatheredStatistics& gathered) {
  PlanBuilder& builder = given.builder;
  const std::string prefix = given.in.device_name(device) + "/validation";
  Replica start;
  start.device = device;
  start.lane = builder.add_lane(Lane::Kind::Validate, device, kNone, prefix);
  Validator validator{ReplicaBuilder(builder, given.in, given.lanes, given.loop, prefix, start)};
  ReplicaBuilder& parts = validator.parts;
  parts.add_reader(given.clocks.validation_batch);
  GivenMemory placed;
  given.memory.place_frozen(given.loop, device, placed);
  parts.place(placed);
  for (const TaskId fill : parts.replica.fills) builder.add_edge(begin, fill, 0, Needs::Done, Why::Clock);
  add_snapshot(given, gathered, validator);
  parts.add_part("/evaluate", 0, parts.nodes());
  parts.close_step();
  return validator;
}

// On a validator, training batches run forward through the snapshot; what their batch norms see is averaged there.
Replica add_recalibrator(const ValidationInputs& given, const Validator& validator, TaskId begin) {
  PlanBuilder& builder = given.builder;
  const Loop& loop = *given.recalibration;
  const ArenaValues &ours = loop.arenas, &theirs = given.loop.arenas;
  const Placement& snapshot = validator.replica().placement;
  Replica start;
  start.device = validator.replica().device;
  start.lane = validator.replica().lane;
  const std::string prefix = given.in.device_name(start.device) + "/recalibration";
  ReplicaBuilder parts(builder, given.in, given.lanes, loop, prefix, start);
  parts.add_reader(given.clocks.recalibration_batch);
  GivenMemory placed = {{ours.weights, snapshot.of[theirs.weights]}};
  if (ours.weights_lowered != kNone) {
    placed.emplace_back(ours.weights_lowered, snapshot.of[theirs.weights_lowered]);
  }
  given.memory.place_frozen(loop, start.device, placed);
  parts.place(placed);
  parts.add_part("", 0, parts.nodes());
  parts.close_step();
  const Replica& replica = parts.replica;
  for (const TaskId fill : replica.fills) builder.add_edge(begin, fill, 0, Needs::Done, Why::Clock);
  builder.add_edge(validator.snapshot, replica.first(), 0, Needs::Issued, Why::Data, "weights");
  builder.add_edge(replica.update(), validator.snapshot, loop.batches, Needs::Issued, Why::Reuse, "weights");
  return replica;
}

// Each validator averages what it saw, then all average those: the statistics that validation uses.
std::vector<Replica> add_recalibration(const ValidationInputs& given, std::vector<Validator>& validators,
                                       TaskId begin) {
  PlanBuilder& builder = given.builder;
  const ValueId averaged = given.recalibration->arenas.statistics, adopted = given.loop.arenas.statistics;
  std::vector<Replica> replicas;
  std::vector<Term> averages;
  for (const Validator& validator : validators) {
    const Replica& replica = replicas.emplace_back(add_recalibrator(given, validator, begin));
    averages.push_back(term_of(*given.recalibration, replica.placement, averaged));
  }
  TaskId all = kNone;
  if (validators.size() > 1) {
    all = add_all_reduce(builder, given.lanes.validation_collectives, "all-reduce recalibration",
                         given.clocks.validation, averages, true);
    // Once they are done: issued before, it would delay the averaging after it.
    for (const Replica& replica : replicas) {
      builder.add_edge(replica.update(), all, 0, Needs::Done, Why::Data, "statistics");
    }
  }
  for (size_t d = 0; d < validators.size(); ++d) {
    Validator& validator = validators[d];
    const TaskId average = replicas[d].update();
    const TaskId adopt =
        builder.add_task(Task::Kind::Snapshot, given.in.device_name(int32_t(d)) + "/recalibration/adopt",
                         validator.replica().lane, given.clocks.validation);
    builder.add_operands(adopt, {averages[d].operand, validator.replica().placement.of[adopted]});
    builder.add_lane_order(adopt);
    builder.add_edge(all != kNone ? all : average, adopt, 0, Needs::Issued, Why::Data, "statistics");
    builder.add_edge(adopt, average, 1, Needs::Issued, Why::Reuse, "statistics");
    builder.add_edge(validator.snapshot, adopt, 0, Needs::Issued, Why::Data, "weights");
    builder.add_edge(adopt, validator.snapshot, 1, Needs::Issued, Why::Reuse, "weights");
    validator.ready = adopt;
  }
  return replicas;
}

// Adds the copy of the validated model to the host, if it can be saved.
void keep_validated(const ValidationInputs& given, const Validator& validator, TaskId end) {
  PlanBuilder& builder = given.builder;
  PlanHandles& handles = builder.plan.handles;
  const std::string device = given.in.device_name(0);
  const ArenaId pinned = builder.add_arena(device + "/validated model", 0, Arena::Memory::Pinned);
  const TaskId task = builder.add_task(Task::Kind::CopyOut, device + "/validation/keep", given.lanes.copy_out.front(),
                                       given.clocks.validation);
  std::vector<Operand> copies;
  const auto keep = [&](ValueId value, const char* name) {
    if (value == kNone) return BufferId{kNone};
    const Term kept = term_of(given.loop, validator.replica().placement, value);
    const BufferId buffer = add_buffer(builder.plan, pinned, name, kept.type.bytes(), 1, kNone);
    copies.insert(copies.end(), {kept.operand, {buffer, 0, 0}});
    return buffer;
  };
  handles.kept_weights = keep(given.loop.arenas.weights, "validated weights");
  handles.kept_statistics = keep(given.loop.arenas.statistics, "validated statistics");
  builder.add_operands(task, copies);
  builder.add_edge(validator.ready, task, 0, Needs::Issued, Why::Data, "model");
  builder.add_edge(task, validator.snapshot, 1, Needs::Issued, Why::Reuse, "model");
  builder.add_edge(task, end, 0, Needs::Done, Why::Data, "model");
  builder.add_edge(end, task, 1, Needs::Done, Why::Reuse, "model");
  builder.add_lane_order(task);
}

// Makes evaluation wait for its model, and adds the copy of its sums to the host for `end`.
void close_validator(const ValidationInputs& given, Validator& validator, TaskId end) {
  PlanBuilder& builder = given.builder;
  builder.add_edge(validator.ready, validator.evaluate(), 0, Needs::Issued, Why::Data, "weights");
  builder.add_edge(validator.evaluate(), validator.snapshot, given.clocks.validation_batches, Needs::Issued, Why::Reuse,
                   "weights");
  validator.parts.add_read_back(given.clocks.validation);
  const TaskId read_back = validator.replica().read_back;
  builder.add_edge(read_back, end, 0, Needs::Done, Why::Data, "tally");
  builder.add_edge(end, read_back, kReadBackSlots, Needs::Done, Why::Reuse, "pinned tally");
}

}  // namespace

// Learners without synchronisation are models of their own: what is validated is the first one, on its device.
void add_validation(const PlanSoFar& plan, const std::vector<TaskId>& averaged) {
  PlanBuilder& builder = plan.builder;
  const PlanInputs& in = plan.in;
  const Clocks& clocks = plan.clocks;
  const Loop& loop = *in.program.find(LoopRole::Validate);
  const ValidationInputs given{plan, averaged, loop, in.program.find(LoopRole::Recalibrate)};
  PlanHandles& handles = builder.plan.handles;
  const TaskId begin =
      builder.add_task(Task::Kind::ValidationBegin, "validation begins", plan.lanes.host, clocks.validation);
  const TaskId end = builder.add_task(Task::Kind::ValidationEnd, "validation ends", plan.lanes.host, clocks.validation);
  const int64_t lead = std::min(in.request.validation_lead, clocks.validation_every - 1);
  int32_t told = kNone;
  for (const Replica& learner : plan.learners) {  // the first of each process
    const int32_t rank = in.request.devices[size_t(learner.device)].rank;
    if (rank <= told) continue;
    told = rank;
    builder.add_edge(learner.update(), begin, lead, Needs::Done, Why::Clock,
                     fmt::format("{} iterations before the end", lead));
  }
  const GatheredStatistics gathered = gather_statistics(given);
  std::vector<Validator> validators;
  for (int32_t d = 0; d < int32_t(validator_count(in.request)); ++d) {
    validators.push_back(add_validator(given, d, begin, gathered));
  }
  std::vector<Replica> recalibrators;
  if (given.recalibration) recalibrators = add_recalibration(given, validators, begin);
  LoopPlan evaluation{LoopRole::Validate, in.graph_of(loop), clocks.validation_batch, {}};
  for (Validator& validator : validators) {
    close_validator(given, validator, end);
    evaluation.replicas.push_back(validator.replica());
  }
  if (in.request.keep_validated) keep_validated(given, validators.front(), end);
  if (in.request.follows_validation) {
    constexpr int64_t kBehind = 2;  // validations: the latest may still run while the next epoch trains
    for (const Replica& learner : plan.learners) {
      builder.add_edge(end, learner.fills.front(), kBehind, Needs::Done, Why::Clock, "validation's verdict");
    }
  }
  builder.add_edge(end, begin, 1, Needs::Done, Why::Self);
  builder.add_edge(end, end, 1, Needs::Done, Why::Self);
  builder.add_edge(begin, begin, 1, Needs::Done, Why::Self);
  handles.validation_begin = begin;
  handles.validation_end = end;
  handles.loops.push_back(std::move(evaluation));
  if (!given.recalibration) return;
  handles.loops.push_back(
      {LoopRole::Recalibrate, in.graph_of(*given.recalibration), clocks.recalibration_batch, std::move(recalibrators)});
}

}  // namespace arbalest
