#pragma once
// What a run has learned, on the host: carried from one plan to the next, and saved. Arrays hold what device memory
// holds.

#include <cstddef>
#include <vector>

#include "executor/state.h"
#include "ops/synchronize.h"

namespace arbalest {

struct ReplicaState {
  std::vector<std::byte> weights, velocity, statistics;  // float[P], float[P], float[S]
};

struct ModelState {
  std::vector<ReplicaState> replicas;        // by learner
  std::vector<std::byte> average, previous;  // Strategy::Kind::Sma: z and z_prev; else empty
};

// The one model that is validated and saved.
struct Model {
  std::vector<std::byte> weights, statistics;
};

// The model that the learners share under `strategy`. `partial`: iterations have passed since the last averaging, which
// this makes up for.
Model shared_model(const ModelState& state, const Strategy& strategy, bool partial);

// Of several replicas: mean = Σ mean_j / k, variance = Σ (variance_j + mean_j²) / k − mean².
std::vector<std::byte> merged_statistics(const std::vector<ReplicaState>& replicas);

// The state of `learners` replicas on each of `devices` that go on from `state`: those there are stay as they are, new
// ones start from the shared model without velocity, and surplus ones end.
ModelState with_learners(const ModelState& state, size_t devices, size_t learners, const Strategy& before,
                         const Strategy& after);

}  // namespace arbalest
