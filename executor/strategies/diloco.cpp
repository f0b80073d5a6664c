// SPDX-License-Identifier: Apache-2.0

// DiLoCo (Douillard et al. 2023): after every group of `every` updates an outer step of Nesterov's method moves the
// model z by the mean of the learners' ways, and every learner goes on from z. With Δ = mean w_j − z,
//
//   v' = μ v + Δ,  z' = z + β (Δ + μ v'),  w_j ← z'
//
// Instead of v there is the point x from which momentum has carried the model to z: x = z − β μ v. Then
//
//   x' = z + β Δ,  z' = x' + μ (x' − x)
//
// Nothing can run meanwhile. z and x lie in two slots of the sync clock: z_n+1 takes the place of x_n, and x_n+1 that
// of z_n.

#include "executor/plan/strategy.h"
#include "executor/session/run_state.h"
#include "executor/strategies/sum_models.h"
#include "ops/names.h"

namespace arbalest {
namespace {

class Diloco final : public Strategy {
 public:
  Diloco()
      : Strategy({.name = "diloco",
                  .averages_models = true,
                  .replaces_models = true,
                  .reads = {"every", "beta", "momentum", "growth"},
                  .every = 50,
                  .beta = 0.7,
                  .momentum = 0.9}) {}

  void add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& clocks,
                  SharedMemory& memory) const override {
    memory.models = add_model_slots(builder, in, clocks);
  }

  std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& cut) const override;

  std::vector<std::byte> shared_weights(const RunState& state, const StrategyOptions& options) const override {
    return state.unaveraged > 0 ? stepped(state, options).now : state.averages.front().now;
  }

  void carry_over(const CarryOver& from, RunState& next) const override {
    const RunState& state = from.state;
    if (from.before.name != facts().name || state.averages.empty()) {
      next.averages = {{from.model.weights, from.model.weights}};
    } else {
      next.averages = {state.unaveraged > 0 ? stepped(state, from.before) : state.averages.front()};
    }
    for (LearnerState& learner : next.learners) learner.weights = next.averages.front().now;
  }

 private:
  static AverageState stepped(const RunState& state, const StrategyOptions& options);
};

// z' and x' of the learners' mean m, as sums of arrays.
struct OuterStep {
  explicit OuterStep(const StrategyOptions& options)
      : rate(options.beta), keep(1 - options.beta), lead(1 + options.momentum), drag(options.momentum) {}

  double rate, keep;  // x' = keep · z + rate · m
  double lead, drag;  // z' = lead · x' − drag · x
};

AverageState Diloco::stepped(const RunState& state, const StrategyOptions& options) {
  const OuterStep step(options);
  const AverageState& average = state.averages.front();
  const auto learners = double(state.learners.size());
  WeightedSum now, before;
  now.add(step.lead * step.keep, average.now);
  now.add(-step.drag, average.before);
  before.add(step.keep, average.now);
  for (const LearnerState& learner : state.learners) {
    now.add(step.lead * step.rate / learners, learner.weights);
    before.add(step.rate / learners, learner.weights);
  }
  return {now.bytes(), before.bytes()};
}

std::vector<TaskId> Diloco::add_tasks(const PlanSoFar& plan, const StepCut& /*cut*/) const {
  const OuterStep step(plan.in.request.strategy);
  const TensorType type = plan.in.type_of(plan.in.training().arenas.weights);
  const auto write = [&](TaskId task, int32_t d, const std::vector<Term>& terms, const std::vector<double>& shares) {
    const Term z{{plan.memory.models[size_t(d)], 0, 0}, type}, x{{plan.memory.models[size_t(d)], 0, 1}, type};
    const auto add = [&](const char* what, std::vector<double> of_slots, double rate, std::vector<Term> inputs,
                         const Term& to) {
      std::vector<double> coefficients = std::move(of_slots);
      for (const double share : shares) coefficients.push_back(rate * share);
      inputs.insert(inputs.end(), terms.begin(), terms.end());
      plan.builder.add_node(task, op::Combine, plan.in.device_name(d) + what, inputs, {to},
                            {{"coefficients", coefficients}});
    };
    add("/outer step", {step.lead * step.keep, -step.drag}, step.lead * step.rate, {z, x}, x);
    add("/outer point", {step.keep}, step.rate, {z}, z);
    replace_models(plan, task, d, {x}, {1.0});
    add_moving_average(plan.builder, plan.in, plan.memory, d, task, x);
  };
  const std::vector<TaskId> replaced =
      sum_models(plan, "replace models", 1.0 / double(plan.in.learners()), write).writes;
  wait_for_models(plan, replaced);
  return replaced;
}

}  // namespace

std::unique_ptr<const Strategy> make_diloco() {
  return std::make_unique<Diloco>();
}

}  // namespace arbalest
