// SPDX-License-Identifier: Apache-2.0

// Synchronous model averaging: w_j ← (the update of w_j) − α(w_j − z) at the first update of a group, and
// z' = z + β(mean w_j − z) + μ(z − z_prev).
//
// Averaging n follows the updates of group n of `every` iterations and runs while group n + 1 begins: forward
// and backward go on, and only the first update of that group waits for it. It reads w_j, z_n and z_n−1 and puts z_n+1
// into the place of z_n−1; the update reads z_n. Between devices w_j are read when the device's own sum is made, and
// the update waits no longer than for that and for z_n, unless it may have to start again from z_n+1.
//
// If hosts average apart, each has a z, and w_j of its learners alone move it. At the last averaging n of each group of
// `every_hosts` the hosts meet. First each host moves as a whole, so that all have the same z_n: with z̄_n, the mean of
// z_n over learners, w_j ← w_j + z̄_n − z_n, then z_n ← z̄_n. Then z_n+1 becomes the mean of z_n+1, which is what all
// learners together make of z̄_n and z̄_n−1. With one averaging in a group that is the equation above.

#include "executor/strategies/sma.h"

#include <algorithm>

#include "executor/session/run_state.h"
#include "executor/strategies/sum_models.h"
#include "ops/names.h"

namespace arbalest {
namespace {

class Sma final : public Strategy {
 public:
  explicit Sma(StrategySpec facts) : Strategy(std::move(facts)) {}

  StepCut cut_step(const PlanInputs& in) const override {
    const Table<NodeId, Node>& nodes = in.training().graph.nodes;
    const auto is_update = [](const Node& node) { return node.stage == Stage::Update; };
    StepCut cut;
    cut.ends = {nodes.id_of(std::find_if(nodes.begin(), nodes.end(), is_update))};
    return cut;
  }

  void add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks,
                  SharedMemory& memory) const override {
    memory.models = add_model_slots(builder, in, clocks);  // z and z_prev; z' takes the latter's place
    for (const BufferId models : memory.models) memory.shared.push_back({models, 0, 1});
  }

  std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& cut) const override;

  void begin_group(const GroupBegin& begin, const StrategyOptions& options, StepScalars& scalars) const override {
    scalars.restart = facts().restarts && begin.rate_drops;
    const double share = begin.group > 0 ? options.alpha : begin.carried_share;
    scalars.correction = float(options.follows_rate ? share * begin.rate_share : share);
  }

  std::vector<std::byte> shared_weights(const RunState& state, const StrategyOptions& options) const override {
    const AverageState& average = state.averages.front();
    if (state.unaveraged == 0) return average.now;
    WeightedSum sum;
    sum.add(1 - options.beta + options.momentum, average.now);
    sum.add(-options.momentum, average.before);
    for (const LearnerState& learner : state.learners) {
      sum.add(options.beta / double(state.learners.size()), learner.weights);
    }
    return sum.bytes();
  }

  // The next update corrects learners that are there as the last averaging asked.
  void carry_over(const CarryOver& from, RunState& next) const override {
    const RunState& state = from.state;
    const bool corrected = strategy_spec(from.before.name).corrects;
    const bool averaged = corrected && (state.unaveraged > 0 || state.averaged);
    for (size_t i = 0; i < next.learners.size() && averaged; ++i) {
      if (from.goes_on[i]) next.learners[i].correction = from.before.alpha;
    }
    next.averages = {{from.model.weights, from.model.weights}};
    if (!corrected) return;
    const AverageState& average = state.averages.front();
    next.averages.front().before = state.unaveraged > 0 ? average.now : average.before;  // z of the last averaging
  }

 private:
  void meet(const PlanSoFar& plan, const SummedModels& sums) const;
};

// z' = z + β (mean w_j − z) + μ (z − z_prev), as one sum of arrays.
std::vector<TaskId> Sma::add_tasks(const PlanSoFar& plan, const StepCut& /*cut*/) const {
  const StrategyOptions& options = plan.in.request.strategy;
  const double momentum = options.momentum, keep = 1 - options.beta + momentum;
  const TensorType type = plan.in.type_of(plan.in.training().arenas.weights);
  const bool apart = plan.in.hosts_average_apart();
  const auto write = [&](TaskId task, int32_t d, std::vector<Term> terms, std::vector<double> coefficients) {
    const Term now{{plan.memory.models[size_t(d)], 0, 0}, type}, other{{plan.memory.models[size_t(d)], 0, 1}, type};
    if (keep != 0 || momentum != 0) {  // otherwise z' is the learners' mean alone
      terms.insert(terms.begin(), {now, other});
      coefficients.insert(coefficients.begin(), {keep, -momentum});
    }
    plan.builder.add_node(task, op::Combine, plan.builder.task(task).name, terms, {other},
                          {{"coefficients", coefficients}});
    if (!apart) add_moving_average(plan.builder, plan.in, plan.memory, d, task, other);
  };
  const SummedModels sums = sum_models(plan, "average", options.beta / double(plan.in.learners()), write);
  const auto& [reads, writes] = sums;
  const bool restarts = plan.in.training().arenas.averaged != kNone;
  for (const Replica& replica : plan.learners) {
    const TaskId read = reads[size_t(replica.device)], written = writes[size_t(replica.device)];
    // If learners neither restart from z_n+1 nor are drawn to it, updates need not wait for the task that writes it:
    // the task that made z_n precedes the sum of models that follows it.
    const bool whole = restarts || facts().draws_to_mean || read == written;
    plan.builder.add_edge(whole ? written : read, replica.update(), 1, Edge::Needs::Issued, Edge::Why::Reuse,
                          whole ? "average" : "weights");
  }
  if (apart) meet(plan, sums);
  return writes;
}

// Forward waits for the hosts' z̄_n and for w_j, updates for z_n, and what reads z_n+1 for its mean.
void Sma::meet(const PlanSoFar& plan, const SummedModels& sums) const {
  PlanBuilder& builder = plan.builder;
  const TensorType type = plan.in.type_of(plan.in.training().arenas.weights);
  std::vector<Term> now, next;  // z_n and z_n+1
  for (const BufferId models : plan.memory.models) {
    now.push_back({{models, 0, 0}, type});
    next.push_back({{models, 0, 1}, type});
  }
  const HostsMean mean = add_hosts_mean(plan, "average", now, sums.reads);
  const TaskId all =
      add_all_reduce(builder, plan.lanes.collectives, "mean next average of hosts", plan.clocks.hosts, next, true);
  builder.add_edge(mean.all, all, 0, Edge::Needs::Issued, Edge::Why::Lane);
  builder.add_edge(all, mean.all, 1, Edge::Needs::Issued, Edge::Why::Lane);
  const bool restarts = plan.in.training().arenas.averaged != kNone;
  for (int32_t d = 0; d < plan.in.devices(); ++d) {
    const auto edge = [&](TaskId from, TaskId to, int64_t distance, Edge::Why why, const char* what) {
      builder.add_edge(from, to, distance, Edge::Needs::Issued, why, what);
    };
    const Term &own = now[size_t(d)], &met = mean.means[size_t(d)];
    const TaskId read = sums.reads[size_t(d)], written = sums.writes[size_t(d)];
    const auto write = [&](TaskId task, const Replica&, const std::vector<Term>& models) {
      builder.add_node(task, op::Combine, builder.task(task).name, {models.front(), met, own}, models,
                       {{"coefficients", std::vector<double>{1, 1, -1}}, {"lowered", int64_t(models.size()) - 1}});
    };
    const TaskId moved = add_model_move(plan, "move models", d, write);
    edge(mean.all, moved, 0, Edge::Why::Data, "average of hosts");
    const TaskId adopted = builder.add_task(Task::Kind::Average, plan.in.device_name(d) + "/adopt average",
                                            plan.lanes.averaging[size_t(d)], plan.clocks.hosts);
    builder.add_node(adopted, op::Combine, builder.task(adopted).name, {met}, {own},
                     {{"coefficients", std::vector<double>{1}}});
    edge(moved, adopted, 0, Edge::Why::Reuse, "average");
    edge(written, adopted, 0, Edge::Why::Reuse, "average");
    edge(written, all, 0, Edge::Why::Data, "next average");
    edge(all, read, 1, Edge::Why::Data, "average");
    for (const Replica* replica : on_device(plan.learners, d)) {
      edge(adopted, replica->update(), 1, Edge::Why::Data, "average");
      if (restarts) edge(all, replica->update(), 1, Edge::Why::Data, "next average");
    }
    plan.met.push_back(all);
    if (size_t(d) >= plan.memory.moving_averages.size()) continue;
    const TaskId moving = builder.add_task(Task::Kind::Average, plan.in.device_name(d) + "/moving average",
                                           plan.lanes.averaging[size_t(d)], plan.clocks.hosts);
    add_moving_average(builder, plan.in, plan.memory, d, moving, next[size_t(d)]);
    builder.add_lane_order(moving);
    edge(all, moving, 0, Edge::Why::Data, "average");
    edge(moving, written, 1, Edge::Why::Reuse, "average");
    plan.met.back() = moving;
  }
}

}  // namespace

std::unique_ptr<const Strategy> make_correcting(StrategySpec facts) {
  return std::make_unique<Sma>(std::move(facts));
}

std::unique_ptr<const Strategy> make_sma() {
  return make_correcting({.name = "sma",
                          .averages_models = true,
                          .corrects = true,
                          .restarts = true,
                          .averages_hosts_apart = true,
                          .goes_on_apart = true,
                          .reads = {"every", "every_hosts", "alpha", "beta", "momentum", "follows_rate", "growth"}});
}

}  // namespace arbalest
