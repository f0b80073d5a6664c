// SPDX-License-Identifier: Apache-2.0

// Local SGD: after every group of `every` updates each replica becomes the mean of all. Nothing can run meanwhile. If
// hosts average apart, it becomes the mean of its host's, and that of all at the end of each group of `every_hosts`.

#include "executor/plan/strategy.h"
#include "executor/session/run_state.h"
#include "executor/strategies/sum_models.h"
#include "ops/names.h"

namespace arbalest {
namespace {

class Local final : public Strategy {
 public:
  Local()
      : Strategy({.name = "local",
                  .averages_models = true,
                  .replaces_models = true,
                  .averages_hosts_apart = true,
                  .goes_on_apart = true,
                  .reads = {"every", "every_hosts", "growth"}}) {}

  std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& cut) const override;

  std::vector<std::byte> shared_weights(const RunState& state, const StrategyOptions& options) const override {
    return state.apart > 0 ? mean_weights(state.learners) : Strategy::shared_weights(state, options);
  }
};

std::vector<TaskId> Local::add_tasks(const PlanSoFar& plan, const StepCut& /*cut*/) const {
  const bool apart = plan.in.hosts_average_apart();
  const auto write = [&](TaskId task, int32_t d, const std::vector<Term>& terms,
                         const std::vector<double>& coefficients) {
    const Term model = replace_models(plan, task, d, terms, coefficients);
    if (!apart) add_moving_average(plan.builder, plan.in, plan.memory, d, task, model);
  };
  const std::vector<TaskId> replaced =
      sum_models(plan, "replace models", 1.0 / double(plan.in.learners()), write).writes;
  wait_for_models(plan, replaced);
  if (!apart) return replaced;
  std::vector<Term> models;
  for (int32_t d = 0; d < plan.in.devices(); ++d) {
    models.push_back(weights_of(plan, *on_device(plan.learners, d).front()));
  }
  const HostsMean mean = add_hosts_mean(plan, "model", models, replaced);
  for (int32_t d = 0; d < plan.in.devices(); ++d) {
    const Term& met = mean.means[size_t(d)];
    const auto become = [&](TaskId task, const Replica&, const std::vector<Term>& places) {
      plan.builder.add_node(task, op::Combine, plan.builder.task(task).name, {met}, places,
                            {{"coefficients", std::vector<double>{1}}, {"lowered", int64_t(places.size()) - 1}});
    };
    plan.met.push_back(add_model_move(plan, "replace models by those of hosts", d, become));
    add_moving_average(plan.builder, plan.in, plan.memory, d, plan.met.back(), met);
    plan.builder.add_edge(mean.all, plan.met.back(), 0, Edge::Needs::Issued, Edge::Why::Data, "model of hosts");
  }
  return replaced;
}

}  // namespace

std::unique_ptr<const Strategy> make_local() {
  return std::make_unique<Local>();
}

}  // namespace arbalest
