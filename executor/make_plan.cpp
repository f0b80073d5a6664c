#include "executor/make_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "executor/lowering.h"
#include "graph/op.h"
#include "io/data_order.h"

namespace arbalest {

Plan make_plan(const Program& program, const PlanRequest& request) {
  return Lowering(program, request).run();
}

int64_t rounds_of(int64_t samples, int64_t learners, int64_t batch, int64_t accumulate) {
  const int64_t update = learners * batch * accumulate;
  if (samples < update) {
    const int64_t most = samples / (batch * accumulate);
    throw GraphError(fmt::format("{} training samples, and one update of {} learner{} takes {}: a batch of {} each{}{}",
                                 samples, learners, learners == 1 ? "" : "s", update, batch,
                                 accumulate == 1 ? "" : fmt::format(", {} times", accumulate),
                                 most == 0 ? "" : fmt::format("; there is enough for {}", most)));
  }
  return rounds_per_epoch(samples, learners, batch * accumulate) * accumulate;
}

Plan Lowering::run() {
  check();
  make_clocks();
  make_lanes();
  plan_.graphs.push_back(program_.training.graph);
  if (program_.validation) plan_.graphs.push_back(program_.validation->graph);
  if (program_.recalibration) plan_.graphs.push_back(program_.recalibration->graph);
  report_ = add_task(Task::Kind::Report, "report", host_, report_clock_);
  add_edge(report_, report_, 1, Needs::Done, Why::Self);
  if (request_.strategy.kind == Strategy::Kind::Ssgd) {
    buckets_ = find_buckets();
    accumulate_ = find_accumulate();
  }
  if (synchronised()) make_average_memory();
  for (int32_t device = 0; device < device_count(); ++device) {
    for (int32_t i = 0; i < request_.learners; ++i) add_learner(device, i);
  }
  if (synchronised()) synchronize();
  if (validations_ > 0) add_validation();
  verify(plan_);
  return std::move(plan_);
}

void Lowering::check() const {
  if (request_.devices.empty()) throw GraphError("no device is given");
  if (request_.learners < 1)
    throw GraphError(fmt::format("{} learners per device, expected at least 1", request_.learners));
  constexpr int32_t kMostLearners = 250;  // of a device: what one averaging kernel takes
  if (request_.learners > kMostLearners) {
    throw GraphError(fmt::format("{} learners per device, expected at most {}", request_.learners, kMostLearners));
  }
  if (request_.rounds % program_.accumulate != 0) {
    throw GraphError(fmt::format("{} iterations an epoch, expected a multiple of the {} batches of an update",
                                 request_.rounds, program_.accumulate));
  }
  if (request_.run_ahead < 1) throw GraphError(fmt::format("run-ahead is {}, expected at least 1", request_.run_ahead));
  if (request_.epochs < 1 && request_.iterations < 1) {
    throw GraphError(fmt::format("{} epochs to train, expected at least 1", request_.epochs));
  }
  const auto other = std::find_if(request_.devices.begin(), request_.devices.end(), [&](const PlanDevice& device) {
    return device.kind != request_.devices.front().kind;
  });
  if (synchronised() && other != request_.devices.end()) {
    throw GraphError(fmt::format("{} and {}: learners that synchronise need devices of one kind",
                                 to_string(request_.devices.front()), to_string(*other)));
  }
}

void Lowering::make_clocks() {
  const int64_t rounds =
      request_.rounds > 0 ? request_.rounds
                          : rounds_of(request_.training_samples, int64_t(request_.devices.size()) * request_.learners,
                                      program_.training.batch, program_.accumulate);
  constexpr int64_t kMost = int64_t{1} << 40;  // ticks of any clock
  if (request_.epochs > kMost / rounds || request_.iterations > kMost) {
    const std::string asked = request_.iterations > kMost
                                  ? fmt::format("{} iterations", request_.iterations)
                                  : fmt::format("{} epochs of {} iterations", request_.epochs, rounds);
    throw GraphError(fmt::format("{}; expected at most {} iterations", asked, kMost));
  }
  if (request_.iterations > 0 && request_.iterations < program_.accumulate) {
    throw GraphError(
        fmt::format("{} iterations make no update of {} batches each", request_.iterations, program_.accumulate));
  }
  const int64_t iterations = request_.iterations > 0 ? request_.iterations : request_.epochs * rounds;
  const int64_t epochs = std::max<int64_t>(1, iterations / rounds);  // whole ones
  batch_ = add_clock("batch", iterations);
  const int64_t within = std::min(rounds, iterations);
  const int64_t every = request_.report_every > 0 ? request_.report_every : std::clamp<int64_t>(within / 20, 1, 100);
  report_clock_ = add_coarser("report", batch_, std::min(every, within), rounds).first;
  int64_t syncs_per_epoch = 0;
  if (request_.strategy.kind == Strategy::Kind::Sma || request_.strategy.kind == Strategy::Kind::Local) {
    const int64_t group = std::min(request_.strategy.every, within) * program_.accumulate;
    const auto [clock, relation] = add_coarser("sync", batch_, std::min(group, within), rounds);
    sync_ = clock;
    syncs_per_epoch = plan_.relations[size_t(relation)].groups_per_period();
  }
  if (!program_.validation || !request_.validates) return;
  // Every so many epochs, and at the end of the last whole one: where the last group is short, the whole run is one
  // period.
  const int64_t every_epochs = std::min(program_.validate_every, epochs);
  const int64_t period = epochs % every_epochs == 0 ? every_epochs : epochs;
  std::tie(validation_, by_validation_) = add_coarser("validation", batch_, every_epochs * rounds, period * rounds);
  validations_ = plan_.clocks[size_t(validation_)].ticks;
  if (sync_ != kNone) {
    plan_.relations.push_back({sync_, validation_, every_epochs * syncs_per_epoch, period * syncs_per_epoch});
  }
  if (request_.validation_samples < 1) throw GraphError("the validation split holds no samples");
  const int64_t validators = validator_count(request_);
  const int64_t batches =
      (validation_batches(request_.validation_samples, program_.validation->batch) + validators - 1) / validators;
  validation_batch_ = add_clock("validation batch", batches * validations_);
  plan_.relations.push_back({validation_batch_, validation_, batches, batches});
  by_validation_batch_ = int32_t(plan_.relations.size()) - 1;
  if (!program_.recalibration) return;
  const int64_t recalibrating = program_.recalibration_batches;
  recalibration_batch_ = add_clock("recalibration batch", recalibrating * validations_);
  plan_.relations.push_back({recalibration_batch_, validation_, recalibrating, recalibrating});
}

ClockId Lowering::add_clock(std::string name, int64_t ticks) {
  plan_.clocks.push_back({std::move(name), ticks});
  return ClockId(plan_.clocks.size() - 1);
}

// A clock that ticks when a group of `fine`'s ticks is complete.
std::pair<ClockId, int32_t> Lowering::add_coarser(std::string name, ClockId fine, int64_t group, int64_t period) {
  ClockRelation relation{fine, ClockId(plan_.clocks.size()), group, period};
  const int64_t ticks = plan_.clocks[size_t(fine)].ticks;
  int64_t complete = relation.coarse_of(ticks - 1);
  if (relation.last_of(complete) < ticks) ++complete;
  add_clock(std::move(name), complete);
  plan_.relations.push_back(relation);
  return {relation.coarse, int32_t(plan_.relations.size()) - 1};
}

void Lowering::make_lanes() {
  plan_.devices = request_.devices;
  host_ = add_lane(Lane::Kind::Host, kNone, kNone, "host");
  for (int32_t d = 0; d < device_count(); ++d) {
    copy_in_.push_back(add_lane(Lane::Kind::CopyIn, d, kNone, device_name(d) + "/copy in"));
    copy_out_.push_back(add_lane(Lane::Kind::CopyOut, d, kNone, device_name(d) + "/copy out"));
    if (synchronised()) {
      collectives_.push_back(add_lane(Lane::Kind::Collectives, d, kNone, device_name(d) + "/averaging"));
    }
  }
  if (synchronised() && device_count() > 1) {
    fabric_ = add_lane(Lane::Kind::Collectives, kNone, kNone, "collectives");
  }
}

LaneId Lowering::add_lane(Lane::Kind kind, int32_t device, int32_t learner, std::string name) {
  plan_.lanes.push_back({kind, device, learner, std::move(name)});
  return LaneId(plan_.lanes.size() - 1);
}

TaskId Lowering::add_task(Task::Kind kind, std::string name, LaneId lane, ClockId clock, int32_t width) {
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

void Lowering::add_edge(TaskId from, TaskId to, int64_t distance, Needs needs, Why why, std::string what) {
  const ClockId a = plan_.tasks[size_t(from)].clock, b = plan_.tasks[size_t(to)].clock;
  int32_t relation = kNone;
  for (size_t r = 0; r < plan_.relations.size(); ++r) {
    const ClockRelation& known = plan_.relations[r];
    if ((known.fine == a && known.coarse == b) || (known.fine == b && known.coarse == a)) relation = int32_t(r);
  }
  plan_.edges.push_back({from, to, distance, relation, needs, why, std::move(what)});
}

void Lowering::add_operands(TaskId task, const std::vector<Operand>& operands) {
  plan_.tasks[size_t(task)].first_operand = int32_t(plan_.operands.size());
  plan_.tasks[size_t(task)].operands = int32_t(operands.size());
  plan_.operands.insert(plan_.operands.end(), operands.begin(), operands.end());
}

ArenaId Lowering::add_arena(std::string name, int32_t device, Arena::Memory memory) {
  plan_.arenas.push_back({std::move(name), device, memory, 0});
  return ArenaId(plan_.arenas.size() - 1);
}

BufferId Lowering::add_device_buffer(const std::string& name, int32_t device, int64_t bytes, int32_t slots,
                                     ClockId clock) {
  return add_buffer(plan_, add_arena(name, device, Arena::Memory::Device), name, bytes, slots, clock);
}

void Lowering::add_node(TaskId task, std::string_view op, std::string name, const std::vector<Term>& inputs,
                        const std::vector<Term>& outputs, Attributes attributes) {
  if (own_graph_ == kNone) {
    own_graph_ = int32_t(plan_.graphs.size());
    plan_.graphs.emplace_back().name = "synchronisation";
  }
  Graph& graph = plan_.graphs[size_t(own_graph_)];
  const auto buffer_name = [&](const Term& term) { return plan_.buffers[size_t(term.operand.buffer)].name; };
  Launch launch{own_graph_, kNone, int32_t(plan_.operands.size()), int32_t(inputs.size()), int32_t(outputs.size())};
  std::vector<ValueId> values;
  for (const Term& input : inputs) {
    plan_.operands.push_back(input.operand);
    values.push_back(graph.add_value(buffer_name(input), input.type, Role::State));
  }
  for (const Term& output : outputs) plan_.operands.push_back(output.operand);
  launch.node = graph.add_node(builtin_ops().get(op), std::move(name), std::move(values), int(outputs.size()),
                               std::move(attributes));
  graph.nodes[size_t(launch.node)].stage = Stage::Update;
  infer(graph, launch.node);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value& value = graph.values[size_t(graph.nodes[size_t(launch.node)].outputs[i])];
    if (!(value.type == outputs[i].type)) {
      throw std::logic_error(fmt::format("{}: output {} is {}, its memory {}", plan_.tasks[size_t(task)].name, i,
                                         to_string(value.type), to_string(outputs[i].type)));
    }
  }
  plan_.launches.push_back(launch);
  ++plan_.tasks[size_t(task)].launches;
}

Lowering::Term Lowering::part(const Operand& whole, DataType type, int64_t offset, int64_t bytes) {
  Term term{whole, {type, {bytes / int64_t(size_of(type))}}};
  term.operand.offset += offset;
  return term;
}

std::vector<const Lowering::Replica*> Lowering::replicas_on(int32_t device) const {
  std::vector<const Replica*> found;
  for (const Replica& replica : replicas_) {
    if (replica.device == device) found.push_back(&replica);
  }
  return found;
}

}  // namespace arbalest
