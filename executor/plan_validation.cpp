// Validation: tasks of the same plan, on a lane of its own on every device that has the model all learners share.

#include <fmt/format.h>

#include <algorithm>

#include "executor/lowering.h"

namespace arbalest {

// Learners without synchronisation are models of their own: what is validated is the first one, on its device.
void Lowering::add_validation() {
  const TaskId begin = add_task(Task::Kind::ValidationBegin, "validation begins", host_, validation_);
  const TaskId end = add_task(Task::Kind::ValidationEnd, "validation ends", host_, validation_);
  const int64_t lead = std::min(request_.validation_lead, plan_.relations[size_t(by_validation_)].group - 1);
  add_edge(replicas_.front().update(), begin, lead, Needs::Done, Why::Clock,
           fmt::format("{} iterations before the end", lead));
  std::vector<Term> sums;
  const TaskId gathered = gather_statistics(sums);
  const auto validators = int32_t(validator_count(request_));
  for (int32_t d = 0; d < validators; ++d) {
    add_validator(d, begin, sums.empty() ? Term{} : sums[size_t(d)], gathered);
  }
  if (program_.recalibration) add_recalibration(begin);
  const Loop& loop = *program_.validation;
  const int64_t batches = plan_.relations[size_t(by_validation_batch_)].group;
  for (int32_t d = 0; d < validators; ++d) {
    const Validator& validator = validators_[size_t(d)];
    add_edge(validator.ready, validator.evaluate, 0, Needs::Issued, Why::Data, "weights");
    add_edge(validator.evaluate, validator.snapshot, batches, Needs::Issued, Why::Reuse, "weights");
    const auto tally = size_t(loop.arenas.tally);
    const TaskId copy =
        add_read_back(validator.evaluate, validator.placement.of[tally], loop.graph.values[tally].type.bytes(),
                      device_name(d) + "/validation", d, validation_);
    add_edge(copy, end, 0, Needs::Done, Why::Data, "tally");
    add_edge(end, copy, 2, Needs::Done, Why::Reuse, "pinned tally");
  }
  if (request_.keep_validated) keep_validated(end);
  if (request_.rate_follows_validation) {
    constexpr int64_t kBehind = 2;  // validations: the latest may still run while the next epoch trains
    for (const Replica& replica : replicas_) {
      add_edge(end, replica.reader.fill, kBehind, Needs::Done, Why::Clock, "learning rate");
    }
  }
  add_edge(end, begin, 1, Needs::Done, Why::Self);
  add_edge(end, end, 1, Needs::Done, Why::Self);
  add_edge(begin, begin, 1, Needs::Done, Why::Self);
}

// Over several devices: each sums the statistics of its learners, then all sum those. Returns the task after which
// `sums` (one a device) hold the whole.
TaskId Lowering::gather_statistics(std::vector<Term>& sums) {
  const ValueId statistics = program_.training.arenas.statistics;
  const bool wanted = synchronised() && statistics != kNone && !program_.recalibration;
  if (!wanted || device_count() == 1) return kNone;
  const int64_t elements = program_.training.graph.values[size_t(statistics)].type.elements();
  std::vector<TaskId> gathered;
  for (int32_t d = 0; d < device_count(); ++d) {
    const std::string name = device_name(d) + "/sum statistics";
    const TensorType type{DataType::Float64, {elements}};
    std::vector<Term> terms;
    for (const Replica* replica : replicas_on(d)) {
      terms.push_back({replica->placement.of[size_t(statistics)], {DataType::Float32, {elements}}});
    }
    const TaskId task = add_task(Task::Kind::Average, name, collectives_[size_t(d)], validation_);
    sums.push_back({{add_device_buffer(name, d, type.bytes(), 1, kNone), 0, 0}, type});
    add_node(task, "arbalest.MergeStatistics", name, terms, {sums.back()},
             {{"gather", int64_t{1}}, {"replicas", int64_t{0}}});
    add_lane_order(task);
    for (const Replica* replica : replicas_on(d)) {
      add_edge(replica->update(), task, 0, Needs::Issued, Why::Data, "statistics");
      add_edge(task, replica->first(), 1, Needs::Issued, Why::Reuse, "statistics");
    }
    gathered.push_back(task);
  }
  const TaskId all = add_all_reduce("all-reduce statistics", validation_, sums, false);
  for (const TaskId task : gathered) {
    add_edge(task, all, 0, Needs::Issued, Why::Data, "sum of statistics");
  }
  return all;
}

void Lowering::add_validator(int32_t device, TaskId begin, const Term& statistics, TaskId gathered) {
  const Loop& loop = *program_.validation;
  const std::string prefix = device_name(device) + "/validation";
  Validator& validator = validators_.emplace_back();
  validator.lane = add_lane(Lane::Kind::Validate, device, kNone, prefix);
  validator.reader = add_reader(loop, request_.validation_resident, prefix, device, validation_batch_);
  validator.placement =
      place(plan_, loop, prefix, device, validator.reader.slot, batch_layout(loop, request_.validation_resident));
  add_edge(begin, validator.reader.fill, 0, Needs::Done, Why::Clock);
  add_snapshot(device, statistics, gathered);
  validator.evaluate = add_part(loop, 1, validator.placement, prefix + "/evaluate", validator.lane, validator.reader, 0,
                                NodeId(loop.graph.nodes.size()));
  close_step(validator.reader, {validator.evaluate});
}

// The model as it is at the end of the epoch: copied, or made from what the learners hold. Recalibration, where there
// is one, makes the statistics.
void Lowering::add_snapshot(int32_t device, const Term& statistics, TaskId gathered) {
  const Loop& loop = *program_.validation;
  const ArenaValues &from = program_.training.arenas, &to = loop.arenas;
  const std::vector<const Replica*> replicas = replicas_on(device);
  const std::string prefix = device_name(device) + "/validation";
  Validator& validator = validators_.back();
  const Placement& placement = validator.placement;
  const TaskId snapshot = add_task(Task::Kind::Snapshot, prefix + "/snapshot", validator.lane, validation_);
  validator.snapshot = validator.ready = snapshot;
  const auto term = [&](const Placement& where, const Graph& graph, ValueId value) {
    return Term{where.of[size_t(value)], graph.values[size_t(value)].type};
  };
  const auto ours = [&](ValueId value) { return term(placement, loop.graph, value); };
  const auto theirs = [&](const Replica& replica, ValueId value) {
    return term(replica.placement, program_.training.graph, value);
  };
  std::vector<Operand> copies;  // from, to
  const auto copy = [&](ValueId source, ValueId target) {
    if (source == kNone || target == kNone) return;
    copies.insert(copies.end(), {replicas.front()->placement.of[size_t(source)], placement.of[size_t(target)]});
  };
  if (averages_.empty()) {
    copy(from.weights, to.weights);
    copy(from.weights_lowered, to.weights_lowered);
  } else {
    std::vector<Term> targets = {ours(to.weights)};
    if (to.weights_lowered != kNone) targets.push_back(ours(to.weights_lowered));
    const auto lowered = int64_t(targets.size()) - 1;
    const Term average{{averages_[size_t(device)], 0, 1}, theirs(*replicas.front(), from.weights).type};
    add_node(snapshot, "arbalest.Combine", prefix + "/weights", {average}, targets,
             {{"coefficients", std::vector<double>{1}}, {"lowered", lowered}});
  }
  if (from.statistics != kNone && to.statistics != kNone && !program_.recalibration) {
    if (!synchronised()) {
      copy(from.statistics, to.statistics);
    } else {
      std::vector<Term> terms;
      for (const Replica* replica : replicas) terms.push_back(theirs(*replica, from.statistics));
      if (gathered != kNone) terms = {statistics};
      add_node(snapshot, "arbalest.MergeStatistics", prefix + "/statistics", terms, {ours(to.statistics)},
               {{"gather", int64_t{gathered == kNone}}, {"replicas", learner_count()}});
    }
  }
  add_operands(snapshot, copies);
  for (const Replica* replica : replicas) {
    const bool read = replica == replicas.front() || gathered == kNone;
    if (!read) continue;
    add_edge(replica->update(), snapshot, 0, Needs::Issued, Why::Data, "model");
    add_edge(snapshot, replica->first(), 1, Needs::Issued, Why::Reuse, "model");
  }
  if (!averaged_.empty()) {
    add_edge(averaged_[size_t(device)], snapshot, 0, Needs::Issued, Why::Data, "average");
    add_edge(snapshot, averaged_[size_t(device)], 1, Needs::Issued, Why::Reuse, "average");
  }
  if (gathered != kNone) {
    add_edge(gathered, snapshot, 0, Needs::Issued, Why::Data, "sum of statistics");
    add_edge(snapshot, gathered, 1, Needs::Issued, Why::Reuse, "sum of statistics");
  }
  add_lane_order(snapshot);
}

// On every validator, training batches run forward through the snapshot; what their batch norms see is averaged, on the
// device and then over devices, and becomes the statistics that validation uses.
void Lowering::add_recalibration(TaskId begin) {
  const Loop& loop = *program_.recalibration;
  const ArenaValues &ours = loop.arenas, &theirs = program_.validation->arenas;
  constexpr int32_t kGraph = 2;
  const TensorType type = loop.graph.values[size_t(ours.statistics)].type;
  std::vector<Term> averages;
  std::vector<TaskId> averaged;
  for (size_t d = 0; d < validators_.size(); ++d) {
    const Validator& validator = validators_[d];
    const auto device = int32_t(d);
    const std::string prefix = device_name(device) + "/recalibration";
    const Reader reader = add_reader(loop, request_.training_resident, prefix, device, recalibration_batch_);
    std::vector<std::pair<ValueId, Operand>> given = {{ours.weights, validator.placement.of[size_t(theirs.weights)]}};
    if (ours.weights_lowered != kNone) {
      given.emplace_back(ours.weights_lowered, validator.placement.of[size_t(theirs.weights_lowered)]);
    }
    const Placement placement =
        place(plan_, loop, prefix, device, reader.slot, batch_layout(loop, request_.training_resident), given);
    const TaskId average =
        add_part(loop, kGraph, placement, prefix, validator.lane, reader, 0, NodeId(loop.graph.nodes.size()));
    close_step(reader, {average});
    add_edge(begin, reader.fill, 0, Needs::Done, Why::Clock);
    add_edge(validator.snapshot, average, 0, Needs::Issued, Why::Data, "weights");
    add_edge(average, validator.snapshot, program_.recalibration_batches, Needs::Issued, Why::Reuse, "weights");
    averages.push_back({placement.of[size_t(ours.statistics)], type});
    averaged.push_back(average);
  }
  TaskId all = kNone;
  if (validators_.size() > 1) {
    all = add_all_reduce("all-reduce recalibration", validation_, averages, true);
    // Once they are done: issued before, it would hold up averaging behind it.
    for (const TaskId average : averaged) add_edge(average, all, 0, Needs::Done, Why::Data, "statistics");
  }
  for (size_t d = 0; d < validators_.size(); ++d) {
    Validator& validator = validators_[d];
    const TaskId adopt =
        add_task(Task::Kind::Snapshot, device_name(int32_t(d)) + "/recalibration/adopt", validator.lane, validation_);
    add_operands(adopt, {averages[d].operand, validator.placement.of[size_t(theirs.statistics)]});
    add_lane_order(adopt);
    add_edge(all != kNone ? all : averaged[d], adopt, 0, Needs::Issued, Why::Data, "statistics");
    add_edge(adopt, averaged[d], 1, Needs::Issued, Why::Reuse, "statistics");
    add_edge(validator.snapshot, adopt, 0, Needs::Issued, Why::Data, "weights");
    add_edge(adopt, validator.snapshot, 1, Needs::Issued, Why::Reuse, "weights");
    validator.ready = adopt;
  }
}

// What was validated travels to the host, for whoever saves it.
void Lowering::keep_validated(TaskId end) {
  const Validator& validator = validators_.front();
  const ArenaValues& arenas = program_.validation->arenas;
  const ArenaId pinned = add_arena(device_name(0) + "/validated model", 0, Arena::Memory::Pinned);
  const TaskId task =
      add_task(Task::Kind::CopyOut, device_name(0) + "/validation/keep", copy_out_.front(), validation_);
  std::vector<Operand> copies;
  for (const auto& [value, name] : {std::pair(arenas.weights, kKeptWeights), {arenas.statistics, kKeptStatistics}}) {
    if (value == kNone) continue;
    const int64_t bytes = program_.validation->graph.values[size_t(value)].type.bytes();
    copies.push_back(validator.placement.of[size_t(value)]);
    copies.push_back({add_buffer(plan_, pinned, name, bytes, 1, kNone), 0, 0});
  }
  add_operands(task, copies);
  add_edge(validator.ready, task, 0, Needs::Issued, Why::Data, "model");
  add_edge(task, validator.snapshot, 1, Needs::Issued, Why::Reuse, "model");
  add_edge(task, end, 0, Needs::Done, Why::Data, "model");
  add_edge(end, task, 1, Needs::Done, Why::Reuse, "model");
  add_lane_order(task);
}

}  // namespace arbalest
