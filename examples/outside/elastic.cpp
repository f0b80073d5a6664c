// SPDX-License-Identifier: Apache-2.0

// A strategy of one's own: elastic averaging. After each group of `every` updates learners are drawn to their mean z,
// w_j ← w_j − α(w_j − z), with α = `alpha` of Synchronize; α = 1 is local SGD. The model that is validated and saved is
// z.

#include "executor/plan/strategy.h"
#include "executor/session/run_state.h"
#include "executor/strategies/sum_models.h"
#include "own.h"

using namespace arbalest;

namespace {

class Elastic final : public Strategy {
 public:
  Elastic() : Strategy({.name = "elastic", .averages_models = true, .reads = {"every", "alpha", "growth"}}) {}

  // z on each device.
  void add_memory(PlanBuilder& builder, const PlanInputs& in, const Clocks& /*clocks*/,
                  SharedMemory& memory) const override {
    const int64_t bytes = in.type_of(in.training().arenas.weights).bytes();
    for (int32_t d = 0; d < in.devices(); ++d) {
      memory.shared.push_back({builder.add_device_buffer(in.device_name(d) + "/mean", d, bytes, 1, kNone), 0, 0});
    }
  }

  // A device's task makes z of the sum of all models, and then each of its learners' models of itself and z.
  std::vector<TaskId> add_tasks(const PlanSoFar& plan, const StepCut& /*cut*/) const override {
    const double alpha = plan.in.request.strategy.alpha;
    const ValueId copy = plan.in.training().arenas.weights_lowered;
    const auto write = [&](TaskId task, int32_t d, const std::vector<Term>& terms,
                           const std::vector<double>& coefficients) {
      const Term mean{plan.memory.shared[size_t(d)], plan.in.type_of(plan.in.training().arenas.weights)};
      const std::string name = plan.builder.task(task).name;
      plan.builder.add_node(task, "arbalest.Combine", name + " mean", terms, {mean}, {{"coefficients", coefficients}});
      add_moving_average(plan.builder, plan.in, plan.memory, d, task, mean);
      for (const Replica* replica : on_device(plan.learners, d)) {
        std::vector<Term> models = {weights_of(plan, *replica)};
        if (copy != kNone) models.push_back({replica->placement.of[copy], plan.in.type_of(copy)});
        plan.builder.add_node(
            task, "arbalest.Combine", name, {models.front(), mean}, models,
            {{"coefficients", std::vector<double>{1 - alpha, alpha}}, {"lowered", int64_t(models.size()) - 1}});
      }
    };
    const std::vector<TaskId> drawn = sum_models(plan, "draw models", 1.0 / double(plan.in.learners()), write).writes;
    for (const Replica& replica : plan.learners) {
      plan.builder.add_edge(drawn[size_t(replica.device)], replica.first(), 1, Edge::Needs::Issued, Edge::Why::Data,
                            "weights");
    }
    return drawn;
  }

  std::vector<std::byte> shared_weights(const RunState& state, const StrategyOptions& /*options*/) const override {
    return mean_weights(state.learners);
  }
};

}  // namespace

void register_elastic() {
  register_strategy(std::make_unique<Elastic>());
}
