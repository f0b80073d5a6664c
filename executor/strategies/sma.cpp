// SPDX-License-Identifier: Apache-2.0

// Synchronous model averaging: w_j ← (the update of w_j) − α(w_j − z) at the first update of a group, and
// z' = z + β(mean w_j − z) + μ(z − z_prev).
//
// Averaging n follows the updates of group n of `every` iterations and runs while group n + 1 begins: forward
// and backward go on, and only the first update of that group waits for it. It reads w_j, z_n and z_n−1 and puts z_n+1
// into the place of z_n−1; the update reads z_n. Between devices w_j are read when the device's own sum is made, and
// the update waits no longer than for that and for z_n, unless it may have to start again from z_n+1.

#include <algorithm>

#include "executor/plan/strategy.h"
#include "executor/session/run_state.h"
#include "executor/strategies/sum_models.h"

namespace arbalest {
namespace {

class Sma final : public Strategy {
 public:
  Sma() : Strategy({.name = "sma", .averages_models = true, .corrects = true}) {}

  StepCut cut_step(const PlanInputs& in) const override {
    const std::vector<Node>& nodes = in.training().graph.nodes;
    const auto is_update = [](const Node& node) { return node.stage == Stage::Update; };
    StepCut cut;
    cut.ends = {NodeId(std::find_if(nodes.begin(), nodes.end(), is_update) - nodes.begin())};
    return cut;
  }

  void add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks,
                  SharedMemory& memory) const override {
    constexpr int32_t kModels = 2;  // z and z_prev; z' takes the latter's place
    const int64_t bytes = in.type_of(in.training().arenas.weights).bytes();
    for (int32_t d = 0; d < in.devices(); ++d) {
      memory.models.push_back(
          builder.add_device_buffer(in.device_name(d) + "/average", d, bytes, kModels, clocks.sync));
      memory.shared.push_back({memory.models.back(), 0, 1});
    }
  }

  std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& cut) const override;

  void begin_group(const GroupBegin& begin, const StrategyOptions& options, StepScalars& scalars) const override {
    scalars.restart = begin.rate_drops;
    scalars.correction = float(begin.group > 0 ? options.alpha : begin.carried_share);
  }

  std::vector<std::byte> shared_weights(const RunState& state, const StrategyOptions& options) const override {
    if (state.unaveraged == 0) return state.average;
    WeightedSum sum;
    sum.add(1 - options.beta + options.momentum, state.average);
    sum.add(-options.momentum, state.previous);
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
    const auto& read = state.unaveraged > 0 ? state.average : state.previous;  // z of the last averaging
    next.average = from.model.weights;
    next.previous = corrected ? read : from.model.weights;
  }
};

// z' = z + β (mean w_j − z) + μ (z − z_prev), as one sum of arrays.
std::vector<TaskId> Sma::add_tasks(const PlanSoFar& plan, const StepCut& /*cut*/) const {
  const StrategyOptions& options = plan.in.request.strategy;
  const double momentum = options.momentum, keep = 1 - options.beta + momentum;
  const TensorType type = plan.in.type_of(plan.in.training().arenas.weights);
  const auto write = [&](TaskId task, int32_t d, std::vector<Term> terms, std::vector<double> coefficients) {
    const Term now{{plan.memory.models[size_t(d)], 0, 0}, type}, other{{plan.memory.models[size_t(d)], 0, 1}, type};
    terms.insert(terms.begin(), {now, other});
    coefficients.insert(coefficients.begin(), {keep, -momentum});
    plan.builder.add_node(task, "arbalest.Combine", plan.builder.task(task).name, terms, {other},
                          {{"coefficients", coefficients}});
    add_moving_average(plan.builder, plan.in, plan.memory, d, task, other);
  };
  const auto [reads, writes] = sum_models(plan, "average", options.beta / double(plan.in.learners()), write);
  const bool restarts = plan.in.training().arenas.averaged != kNone;
  for (const Replica& replica : plan.learners) {
    const TaskId read = reads[size_t(replica.device)], written = writes[size_t(replica.device)];
    // If learners do not restart from the average, updates need not wait for the task that writes it: the task that
    // made z_n precedes the sum of models that follows it.
    const bool whole = restarts || read == written;
    plan.builder.add_edge(whole ? written : read, replica.update(), 1, Edge::Needs::Issued, Edge::Why::Reuse,
                          whole ? "average" : "weights");
  }
  return writes;
}

}  // namespace

std::unique_ptr<const Strategy> make_sma() {
  return std::make_unique<Sma>();
}

}  // namespace arbalest
