#include "executor/session/run_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

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

void add(std::vector<double>& sum, double coefficient, const std::vector<std::byte>& bytes) {
  const std::span<const float> terms = floats(bytes);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += coefficient * double(terms[i]);
}

}  // namespace

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

ModelState shared_model(const RunState& state, const Strategy& strategy) {
  ModelState model;
  const std::vector<LearnerState>& learners = state.learners;
  const bool alone = strategy.kind == Strategy::Kind::None;
  model.statistics = alone ? learners.front().statistics : merged_statistics(learners);
  model.frozen = state.frozen;
  const size_t count = floats(learners.front().weights).size();
  if (strategy.kind == Strategy::Kind::Sma && state.unaveraged > 0) {
    std::vector<double> average(count, 0);
    add(average, 1 - strategy.beta + strategy.momentum, state.average);
    add(average, -strategy.momentum, state.previous);
    for (const LearnerState& learner : learners) add(average, strategy.beta / double(learners.size()), learner.weights);
    model.weights = bytes_of(average);
  } else if (strategy.kind == Strategy::Kind::Sma) {
    model.weights = state.average;
  } else if (strategy.kind == Strategy::Kind::Local && state.unaveraged > 0) {
    std::vector<double> mean(count, 0);
    for (const LearnerState& learner : learners) add(mean, 1.0 / double(learners.size()), learner.weights);
    model.weights = bytes_of(mean);
  } else {
    model.weights = learners.front().weights;
  }
  return model;
}

MovingAverage caught_up(const RunState& state, const std::vector<std::byte>& weights) {
  MovingAverage average = state.moving_average;
  if (average.decay == 0 || state.unaveraged == 0) return average;
  const double share = moving_average_share(std::log(average.decay), average.updates, state.unaveraged);
  std::vector<double> moved(floats(weights).size(), 0);
  add(moved, 1 - share, average.weights);
  add(moved, share, weights);
  average.weights = bytes_of(moved);
  average.updates += state.unaveraged;
  return average;
}

RunState with_learners(const RunState& state, size_t devices, size_t learners, const Strategy& before,
                       const Strategy& after) {
  const ModelState model = shared_model(state, before);
  const bool averaged = before.kind == Strategy::Kind::Sma && (state.unaveraged > 0 || state.averaged);
  const std::vector<std::byte>& read =
      state.unaveraged > 0 ? state.average : state.previous;  // z of the last averaging
  const LearnerState& first = state.learners.front();
  LearnerState fresh{model.weights, model.statistics, {}};
  for (const std::vector<std::byte>& slot : first.slots) fresh.slots.emplace_back(slot.size());
  const size_t there = state.learners.size() / devices;
  const bool alike =
      devices * learners == 1 || after.kind == Strategy::Kind::Ssgd || before.kind == Strategy::Kind::Local;
  RunState next;
  next.frozen = state.frozen;
  next.moving_average = caught_up(state, model.weights);
  next.moving_average.within = 0;
  for (size_t d = 0; d < devices; ++d) {
    for (size_t i = 0; i < learners; ++i) {
      LearnerState learner = i < there ? state.learners[d * there + i] : fresh;
      if (averaged && i < there && after.kind == Strategy::Kind::Sma) learner.correction = before.alpha;
      if (alike) learner.weights = model.weights;
      if (after.kind == Strategy::Kind::Ssgd) {
        learner.slots = first.slots;
        learner.updates = first.updates;
      }
      next.learners.push_back(std::move(learner));
    }
  }
  if (after.kind != Strategy::Kind::Sma) return next;
  next.average = model.weights;
  next.previous = before.kind == Strategy::Kind::Sma ? read : model.weights;
  return next;
}

}  // namespace arbalest
