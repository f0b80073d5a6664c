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
  double correction = 0;                                 // of w − z_prev: what the next update still has to take away
};

struct ModelState {
  std::vector<ReplicaState> replicas;        // by learner
  std::vector<std::byte> average, previous;  // Strategy::Kind::Sma: z and z_prev; else empty
  bool averaged = false;                     // an averaging has been that replicas are not corrected by yet
  bool updated = false;                      // replicas have been, since the last averaging
};

// The one model that is validated and saved.
struct Model {
  std::vector<std::byte> weights, statistics;
};

// The model that the learners share under `strategy`. Where replicas have been updated since the last averaging, they
// are averaged once more.
Model shared_model(const ModelState& state, const Strategy& strategy);

// Of several replicas: mean = Σ mean_j / k, variance = Σ (variance_j + mean_j²) / k − mean².
std::vector<std::byte> merged_statistics(const std::vector<ReplicaState>& replicas);

// The state of `learners` replicas on each of `devices` that go on from `state`. Those that are there keep their
// weights and what the last averaging asked of them; new ones start from the shared model, without velocity; surplus
// ones end. Where all have to be alike (a single learner, S-SGD, local SGD after averaging) they have the shared
// model's weights, under S-SGD the first replica's velocity too.
ModelState with_learners(const ModelState& state, size_t devices, size_t learners, const Strategy& before,
                         const Strategy& after);

}  // namespace arbalest
