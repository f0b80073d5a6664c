// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/make_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/checked.h"
#include "executor/plan/plan_part.h"
#include "executor/plan/strategy.h"
#include "io/sources/data_order.h"

namespace arbalest {

Plan make_plan(const Program& program, const PlanRequest& request) {
  const PlanInputs in{program, request};
  check(in);
  PlanBuilder builder;
  builder.plan.devices = request.devices;
  for (const Loop& loop : program.loops) builder.plan.graphs.push_back(loop.graph);
  const Clocks clocks = add_clocks(builder, in);
  const Lanes lanes = add_lanes(builder, in);
  const TaskId report = add_report(builder, clocks, lanes);
  const Strategy& strategy = in.strategy();
  const StepCut cut = strategy.cut_step(in);
  const SharedMemory memory = add_shared_memory(builder, in, clocks);
  std::vector<Replica> learners;
  std::vector<TaskId> met;
  const PlanSoFar plan{builder, in, clocks, lanes, memory, learners, met};
  add_learners(plan, cut, report, learners);
  const std::vector<TaskId> averaged = strategy.add_tasks(plan, cut);
  if (clocks.validations > 0) add_validation(plan, averaged);
  for (LoopPlan& loop : builder.plan.handles.loops) {
    for (Replica& replica : loop.replicas) replica.place = loop.everywhere++;
  }
  if (request.awaits_collectives) {
    for (Edge& edge : builder.plan.edges) {
      const bool sums = builder.plan.tasks[edge.from].kind == Task::Kind::Collective;
      if (sums && edge.why == Edge::Why::Data) edge.needs = Edge::Needs::Done;
    }
  }
  verify(builder.plan);
  return std::move(builder.plan);
}

int64_t rounds_of(int64_t samples, int64_t learners, int64_t batch, int64_t accumulate) {
  const std::string what =
      fmt::format("the samples of an update ({} learners, batch {}, accumulate {})", learners, batch, accumulate);
  const int64_t of_learner = checked_multiply(batch, accumulate, what);
  const int64_t update = checked_multiply(learners, of_learner, what);
  if (update < 1) throw GraphError(fmt::format("{}: {}, expected at least 1", what, update));
  if (samples < update) {
    const int64_t enough = samples / of_learner, batches = samples / accumulate;
    const std::string instead = enough > 0    ? fmt::format("; there is enough for {}", enough)
                                : batches > 0 ? fmt::format("; arbalest.Prefetch's 'batch' may be {} at most", batches)
                                              : "";
    throw GraphError(fmt::format("{} training samples, and one update of {} learner{} takes {}: a batch of {} each{}{}",
                                 samples, learners, learners == 1 ? "" : "s", update, batch,
                                 accumulate == 1 ? "" : fmt::format(", {} times", accumulate), instead));
  }
  return rounds_per_epoch(samples, learners, of_learner) * accumulate;
}

const Strategy& PlanInputs::strategy() const {
  return strategy_named(request.strategy.name);
}

bool PlanInputs::hosts_average_apart() const {
  const auto elsewhere = [&](const PlanDevice& device) {
    return device.host_number != request.devices.front().host_number;
  };
  return strategy_facts().averages_hosts_apart && request.strategy.every_hosts > 1 &&
         std::any_of(request.devices.begin(), request.devices.end(), elsewhere);
}

std::vector<std::vector<int32_t>> PlanInputs::averaging_groups() const {
  const bool apart = hosts_average_apart();
  std::vector<std::vector<int32_t>> groups;
  for (int32_t d = 0; d < devices(); ++d) {
    const size_t group = apart ? size_t(request.devices[size_t(d)].host_number) : 0;
    if (group >= groups.size()) groups.resize(group + 1);
    groups[group].push_back(d);
  }
  return groups;
}

void check(const PlanInputs& in) {
  if (in.request.devices.empty()) throw GraphError("no device is given");
  if (in.request.learners < 1)
    throw GraphError(fmt::format("{} learners per device, expected at least 1", in.request.learners));
  constexpr int32_t kMostLearners = 250;  // of a device: what one averaging kernel takes
  if (in.request.learners > kMostLearners) {
    throw GraphError(fmt::format("{} learners per device, expected at most {}", in.request.learners, kMostLearners));
  }
  if (in.request.rounds % in.program.accumulate != 0) {
    throw GraphError(fmt::format("{} iterations an epoch, expected a multiple of the {} batches of an update",
                                 in.request.rounds, in.program.accumulate));
  }
  if (in.request.run_ahead < 1)
    throw GraphError(fmt::format("run-ahead is {}, expected at least 1", in.request.run_ahead));
  if (in.request.epochs < 1 && in.request.iterations < 1) {
    throw GraphError(fmt::format("{} epochs to train, expected at least 1", in.request.epochs));
  }
  const auto other = std::find_if(in.request.devices.begin(), in.request.devices.end(), [&](const PlanDevice& device) {
    return device.kind != in.request.devices.front().kind;
  });
  if (in.synchronised() && other != in.request.devices.end()) {
    throw GraphError(fmt::format("{} and {}: learners that synchronise need devices of one kind",
                                 to_string(in.request.devices.front()), to_string(*other)));
  }
}

namespace {

// Whole epochs between validations, such that the last whole epoch of the run is validated: if the last group is
// short, the whole run is one period.
void add_validation_clocks(PlanBuilder& builder, const PlanInputs& in, int64_t epochs, int64_t rounds,
                           int64_t syncs_per_epoch, Clocks& clocks) {
  Plan& plan = builder.plan;
  const int64_t every_epochs = std::min(in.program.validate_every, epochs);
  const int64_t period = epochs % every_epochs == 0 ? every_epochs : epochs;
  std::tie(clocks.validation, plan.handles.by_validation) =
      builder.add_coarser("validation", clocks.batch, every_epochs * rounds, period * rounds);
  clocks.validations = plan.clocks[clocks.validation].ticks;
  clocks.validation_every = every_epochs * rounds;
  if (clocks.sync != kNone) {
    plan.relations.push_back(
        {clocks.sync, clocks.validation, every_epochs * syncs_per_epoch, period * syncs_per_epoch});
  }
  if (const ClockRelation* hosts = plan.relation(plan.handles.by_hosts)) {
    const int64_t of_epoch = hosts->groups_per_period();
    plan.relations.push_back({clocks.hosts, clocks.validation, every_epochs * of_epoch, period * of_epoch});
  }
  if (in.request.validation_samples < 1) throw GraphError("the validation split holds no samples");
  const auto add_batches = [&](const char* name, int64_t batches) {
    const ClockId clock = builder.add_clock(name, batches * clocks.validations);
    plan.relations.push_back({clock, clocks.validation, batches, batches});
    return clock;
  };
  const int64_t validators = validator_count(in.request), batch = in.program.find(LoopRole::Validate)->batch;
  clocks.validation_batches = (validation_batches(in.request.validation_samples, batch) + validators - 1) / validators;
  clocks.validation_batch = add_batches("validation batch", clocks.validation_batches);
  if (const Loop* recalibration = in.program.find(LoopRole::Recalibrate)) {
    clocks.recalibration_batch = add_batches("recalibration batch", recalibration->batches);
  }
}

}  // namespace

Clocks add_clocks(PlanBuilder& builder, const PlanInputs& in) {
  Plan& plan = builder.plan;
  const PlanRequest& request = in.request;
  const int64_t accumulate = in.program.accumulate;
  const int64_t rounds = request.rounds > 0
                             ? request.rounds
                             : rounds_of(request.training_samples, in.learners(), in.training().batch, accumulate);
  constexpr int64_t kMost = int64_t{1} << 40;  // ticks of any clock
  if (request.epochs > kMost / rounds || request.iterations > kMost) {
    const std::string asked = request.iterations > kMost
                                  ? fmt::format("{} iterations", request.iterations)
                                  : fmt::format("{} epochs of {} iterations", request.epochs, rounds);
    throw GraphError(fmt::format("{}; expected at most {} iterations", asked, kMost));
  }
  if (request.iterations > 0 && request.iterations < accumulate) {
    throw GraphError(fmt::format("{} iterations make no update of {} batches each", request.iterations, accumulate));
  }
  const int64_t iterations = request.iterations > 0 ? request.iterations : request.epochs * rounds;
  const int64_t epochs = std::max<int64_t>(1, iterations / rounds);  // whole ones
  Clocks clocks;
  clocks.batch = builder.add_clock("batch", iterations);
  const int64_t within = std::min(rounds, iterations);
  const int64_t every = request.report_every > 0 ? request.report_every : std::clamp<int64_t>(within / 20, 1, 100);
  std::tie(clocks.report, plan.handles.by_report) =
      builder.add_coarser("report", clocks.batch, std::min(every, within), rounds);
  int64_t syncs_per_epoch = 0;
  if (in.strategy_facts().averages_models) {
    const int64_t group = std::min(request.strategy.every, within) * accumulate;
    std::tie(clocks.sync, plan.handles.by_sync) =
        builder.add_coarser("sync", clocks.batch, std::min(group, within), rounds);
    syncs_per_epoch = plan.relations[plan.handles.by_sync].groups_per_period();
  }
  if (in.hosts_average_apart()) {
    const ClockRelation sync = plan.relations[plan.handles.by_sync];
    const int64_t syncs = std::min(request.strategy.every_hosts, syncs_per_epoch);
    clocks.hosts = builder.add_coarser("hosts", clocks.sync, syncs, syncs_per_epoch).first;
    plan.handles.by_hosts = plan.relations.end_id();
    plan.relations.push_back({clocks.batch, clocks.hosts, std::min(syncs * sync.group, rounds), rounds});
  }
  if (in.program.find(LoopRole::Validate) && request.validates) {
    add_validation_clocks(builder, in, epochs, rounds, syncs_per_epoch, clocks);
  }
  return clocks;
}

Lanes add_lanes(PlanBuilder& builder, const PlanInputs& in) {
  Lanes lanes;
  lanes.host = builder.add_lane(Lane::Kind::Host, kNone, kNone, "host");
  for (int32_t d = 0; d < in.devices(); ++d) {
    const auto add = [&](Lane::Kind kind, const char* name) {
      return builder.add_lane(kind, d, kNone, in.device_name(d) + name);
    };
    lanes.copy_in.push_back(add(Lane::Kind::CopyIn, "/copy in"));
    lanes.copy_out.push_back(add(Lane::Kind::CopyOut, "/copy out"));
    const char* averages = in.strategy_facts().sums_gradients ? "/gradients" : "/averaging";
    if (in.synchronised()) lanes.averaging.push_back(add(Lane::Kind::Averaging, averages));
  }
  // Every process has one of these, so that all connect at the same time, also where a host has one device.
  if (in.hosts_average_apart()) {
    for (const std::vector<int32_t>& group : in.averaging_groups()) {
      const std::string name = fmt::format("host {}/collectives", lanes.within_hosts.size());
      lanes.within_hosts.push_back(builder.add_lane(Lane::Kind::Collectives, kNone, kNone, name));
      builder.plan.lanes.back().spans = group;
    }
  }
  if (in.synchronised() && in.devices() > 1) {
    lanes.collectives = builder.add_lane(Lane::Kind::Collectives, kNone, kNone, "collectives");
    lanes.validation_collectives = lanes.collectives;
    // No edge orders training's collectives and validation's, and several processes may come to them in other orders.
    if (rank_count(builder.plan) > 1) {
      lanes.validation_collectives = builder.add_lane(Lane::Kind::Collectives, kNone, kNone, "validation collectives");
    }
  }
  return lanes;
}

TaskId add_report(PlanBuilder& builder, const Clocks& clocks, const Lanes& lanes) {
  const TaskId report = builder.add_task(Task::Kind::Report, "report", lanes.host, clocks.report);
  builder.add_edge(report, report, 1, Edge::Needs::Done, Edge::Why::Self);
  builder.plan.handles.report = report;
  return report;
}

}  // namespace arbalest
