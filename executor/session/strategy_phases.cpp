// SPDX-License-Identifier: Apache-2.0
#include "executor/session/strategy_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/setting.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {

std::vector<StrategyPhase> strategy_phases(const Graph& graph, const std::optional<std::string>& replaced,
                                           int64_t learners) {
  const std::vector<const Node*> nodes = synchronize_nodes(graph);
  if (replaced && nodes.size() > 1) {
    throw GraphError(fmt::format("{} replaces one strategy, and the graph has {} that follow each other",
                                 set_to(SettingKey::Strategy, *replaced), nodes.size()));
  }
  std::vector<StrategyPhase> phases;
  for (const Node* node : nodes) {
    phases.push_back({int_attribute(*node, "from"), strategy_options(*node)});
    if (!replaced) check_read(*node);  // another strategy leaves out what it does not read
  }
  if (learners == 1 && phases.size() > 1) phases.resize(1);  // nobody to agree with
  if (nodes.empty()) phases = {{0, {.every = kOwnNumber, .alpha = kOwnNumber, .beta = kOwnNumber}}};
  for (StrategyPhase& phase : phases) {
    StrategyOptions& strategy = phase.strategy;
    if (replaced) strategy.name = *replaced;
    const StrategySpec& spec = strategy_spec(strategy.name);
    if (spec.sums_gradients) strategy.every = 1;
    if (!spec.averages_hosts_apart) strategy.every_hosts = 1;
    if (!spec.corrects) strategy.follows_rate = false;
    if (!spec.averages_models || learners == 1) strategy.growth = 0;
    strategy = resolved(strategy, learners, *graph.find_op(op::Train));
  }
  return phases;
}

namespace {

// By epoch, the greatest rate of this epoch and those after it.
std::vector<double> greatest_rates(const EpochRates& rates) {
  std::vector<double> greatest(size_t(std::max(1.0, std::ceil(rates.epochs))));
  for (size_t epoch = greatest.size(); epoch-- > 0;) {
    greatest[epoch] = rates.schedule.rate(double(epoch), rates.epochs) * rates.scale;
    if (epoch + 1 < greatest.size()) greatest[epoch] = std::max(greatest[epoch], greatest[epoch + 1]);
  }
  return greatest;
}

}  // namespace

std::vector<StrategyPhase> grown(const std::vector<StrategyPhase>& phases, const EpochRates& rates) {
  constexpr double kMostEpochs = 1'000'000;
  std::vector<double> greatest;  // made once
  std::vector<StrategyPhase> all;
  for (size_t p = 0; p < phases.size(); ++p) {
    const StrategyPhase& phase = phases[p];
    all.push_back(phase);
    if (phase.strategy.growth == 0) continue;
    if (rates.epochs > kMostEpochs) {
      throw GraphError(fmt::format("attribute 'growth' is {} in a run of {} epochs; expected at most {}",
                                   phase.strategy.growth, rates.epochs, kMostEpochs));
    }
    if (greatest.empty()) greatest = greatest_rates(rates);
    const double end = p + 1 < phases.size() ? std::min(rates.epochs, double(phases[p + 1].from)) : rates.epochs;
    for (int64_t epoch = phase.from; epoch == phase.from || double(epoch) < end; ++epoch) {
      // A phase may begin where the run has ended.
      const double rate = size_t(epoch) < greatest.size()
                              ? greatest[size_t(epoch)]
                              : rates.schedule.rate(double(epoch), rates.epochs) * rates.scale;
      const double ratio = phase.strategy.growth / rate, wanted = ratio * ratio;
      StrategyOptions strategy = phase.strategy;
      // The end of an epoch ends a group, so that more updates than it has make no difference.
      while (strategy.every < rates.updates && 2 * double(strategy.every) <= wanted) strategy.every *= 2;
      if (epoch == phase.from) all.back().strategy = strategy;
      if (strategy != all.back().strategy) all.push_back({epoch, strategy});
    }
  }
  return all;
}

PhaseAt phase_at(const std::vector<StrategyPhase>& phases, int64_t epoch) {
  const auto next =
      std::find_if(phases.begin() + 1, phases.end(), [&](const StrategyPhase& phase) { return phase.from > epoch; });
  return {*(next - 1), next == phases.end() ? INT64_MAX : next->from};
}

std::string to_string(const std::vector<StrategyPhase>& phases) {
  std::string text = phases.front().strategy.name;
  for (size_t p = 1; p < phases.size(); ++p) {
    const StrategyOptions &before = phases[p - 1].strategy, &strategy = phases[p].strategy;
    text += fmt::format(", from epoch {} on {}", phases[p].from + 1, strategy.name);
    if (strategy.every != before.every) text += fmt::format(" every {} updates", strategy.every);
  }
  return text;
}

}  // namespace arbalest
