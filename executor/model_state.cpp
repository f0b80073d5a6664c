#include "executor/model_state.h"

#include <algorithm>
#include <cstring>
#include <span>

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

std::vector<std::byte> merged_statistics(const std::vector<ReplicaState>& replicas) {
  const size_t half = floats(replicas.front().statistics).size() / 2;
  if (replicas.size() == 1 || half == 0) return replicas.front().statistics;
  std::vector<double> merged(half * 2, 0);
  for (const ReplicaState& replica : replicas) {
    const std::span<const float> one = floats(replica.statistics);
    for (size_t i = 0; i < half; ++i) {
      merged[i] += double(one[i]);
      merged[half + i] += double(one[half + i]) + double(one[i]) * double(one[i]);
    }
  }
  for (double& sum : merged) sum /= double(replicas.size());
  for (size_t i = 0; i < half; ++i) merged[half + i] = std::max(0.0, merged[half + i] - merged[i] * merged[i]);
  return bytes_of(merged);
}

Model shared_model(const ModelState& state, const Strategy& strategy, bool partial) {
  Model model;
  const std::vector<ReplicaState>& replicas = state.replicas;
  const bool alone = strategy.kind == Strategy::Kind::None;
  model.statistics = alone ? replicas.front().statistics : merged_statistics(replicas);
  const size_t count = floats(replicas.front().weights).size();
  if (strategy.kind == Strategy::Kind::Sma && partial) {
    std::vector<double> average(count, 0);
    add(average, 1 - strategy.alpha * double(replicas.size()) + strategy.momentum, state.average);
    add(average, -strategy.momentum, state.previous);
    for (const ReplicaState& replica : replicas) add(average, strategy.alpha, replica.weights);
    model.weights = bytes_of(average);
  } else if (strategy.kind == Strategy::Kind::Sma) {
    model.weights = state.average;
  } else if (strategy.kind == Strategy::Kind::Local && partial) {
    std::vector<double> mean(count, 0);
    for (const ReplicaState& replica : replicas) add(mean, 1.0 / double(replicas.size()), replica.weights);
    model.weights = bytes_of(mean);
  } else {
    model.weights = replicas.front().weights;
  }
  return model;
}

ModelState with_learners(ModelState state, size_t learners, const Strategy& before, const Strategy& after) {
  const Model model = shared_model(state, before, false);
  if (state.average.empty()) state.average = state.previous = model.weights;
  const ReplicaState fresh{model.weights, std::vector<std::byte>(model.weights.size()), model.statistics};
  state.replicas.resize(learners, fresh);
  if (after.kind == Strategy::Kind::None) {  // one learner is the model
    state.replicas.front().weights = model.weights;
    state.replicas.front().statistics = model.statistics;
  }
  if (after.kind != Strategy::Kind::Sma) state.average.clear();
  if (after.kind != Strategy::Kind::Sma) state.previous.clear();
  return state;
}

}  // namespace arbalest
