// SPDX-License-Identifier: Apache-2.0
#include "executor/session/run_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "executor/plan/strategy.h"
#include "ops/optim/moving_average.h"

namespace arbalest {
namespace {

std::span<const float> floats(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::vector<std::byte> bytes_of(const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = float(values[i]);
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  return bytes;
}

}  // namespace

void WeightedSum::add(double coefficient, const std::vector<std::byte>& bytes) {
  const std::span<const float> terms = floats(bytes);
  sum_.resize(terms.size());
  for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += coefficient * double(terms[i]);
}

std::vector<std::byte> WeightedSum::bytes() const {
  return bytes_of(sum_);
}

std::vector<std::byte> mean_weights(const std::vector<LearnerState>& learners) {
  WeightedSum sum;
  for (const LearnerState& learner : learners) sum.add(1.0 / double(learners.size()), learner.weights);
  return sum.bytes();
}

std::vector<std::byte> merged_statistics(const std::vector<LearnerState>& learners) {
  const size_t half = floats(learners.front().statistics).size() / 2;
  if (learners.size() == 1 || half == 0) return learners.front().statistics;
  std::vector<double> merged(half * 2, 0);
  for (const LearnerState& learner : learners) {
    const std::span<const float> one = floats(learner.statistics);
    for (size_t i = 0; i < half; ++i) {
      merged[i] += double(one[i]);
      merged[half + i] += double(one[half + i]) + double(one[i]) * double(one[i]);
    }
  }
  for (double& sum : merged) sum /= double(learners.size());
  for (size_t i = 0; i < half; ++i) merged[half + i] = std::max(0.0, merged[half + i] - merged[i] * merged[i]);
  return bytes_of(merged);
}

RunState with_hosts_met(RunState state) {
  if (state.averages.size() < 2) return state;
  WeightedSum now, before;
  for (const LearnerState& learner : state.learners) {
    const AverageState& own = state.averages[size_t(learner.host)];
    now.add(1.0 / double(state.learners.size()), own.now);
    before.add(1.0 / double(state.learners.size()), own.before);
  }
  const AverageState met{now.bytes(), before.bytes()};
  // Learners are on their way to the average before, until they have been corrected by it.
  const auto towards = [&](const AverageState& average) -> const std::vector<std::byte>& {
    return state.unaveraged > 0 ? average.now : average.before;
  };
  for (LearnerState& learner : state.learners) {
    WeightedSum moved;
    moved.add(1, learner.weights);
    moved.add(1, towards(met));
    moved.add(-1, towards(state.averages[size_t(learner.host)]));
    learner.weights = moved.bytes();
    learner.host = 0;
  }
  state.averages = {met};
  return state;
}

ModelState shared_model(const RunState& given, const StrategyOptions& options) {
  std::optional<RunState> met;
  if (given.averages.size() > 1) met = with_hosts_met(given);
  const RunState& state = met ? *met : given;
  const Strategy& strategy = strategy_named(options.name);
  const bool alone = strategy.facts().alone;
  return {.weights = strategy.shared_weights(state, options),
          .statistics = alone ? state.learners.front().statistics : merged_statistics(state.learners),
          .frozen = state.frozen};
}

MovingAverage caught_up(const RunState& state, const std::vector<std::byte>& weights) {
  MovingAverage average = state.moving_average;
  if (average.decay == 0 || state.apart == 0) return average;
  const double share = moving_average_share(std::log(average.decay), average.updates, state.apart);
  WeightedSum moved;
  moved.add(1 - share, average.weights);
  moved.add(share, weights);
  average.weights = moved.bytes();
  average.updates += state.apart;
  return average;
}

RunState with_learners(const RunState& state, size_t devices, size_t learners, const StrategyOptions& before,
                       const StrategyOptions& after) {
  const size_t there = state.learners.size() / devices;
  std::vector<int64_t> sources;
  for (size_t d = 0; d < devices; ++d) {
    for (size_t i = 0; i < learners; ++i) sources.push_back(i < there ? int64_t(d * there + i) : kNewLearner);
  }
  return with_learners(state, sources, before, after);
}

RunState with_learners(const RunState& given, const std::vector<int64_t>& sources, const StrategyOptions& before,
                       const StrategyOptions& after) {
  std::optional<RunState> met;
  if (given.averages.size() > 1) met = with_hosts_met(given);
  const RunState& state = met ? *met : given;
  const ModelState model = shared_model(state, before);
  CarryOver from{state, model, before, {}};
  LearnerState fresh{model.weights, model.statistics, {}};
  for (const std::vector<std::byte>& slot : state.learners.front().slots) fresh.slots.emplace_back(slot.size());
  const bool alike = sources.size() == 1 || strategy_spec(before.name).replaces_models;
  RunState next;
  next.frozen = state.frozen;
  next.moving_average = caught_up(state, model.weights);
  next.moving_average.within = 0;
  for (const int64_t source : sources) {
    from.goes_on.push_back(source != kNewLearner);
    LearnerState learner = source == kNewLearner ? fresh : state.learners[size_t(source)];
    if (alike) learner.weights = model.weights;
    next.learners.push_back(std::move(learner));
  }
  strategy_named(after.name).carry_over(from, next);
  return next;
}

}  // namespace arbalest
