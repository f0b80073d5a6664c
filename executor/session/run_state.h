// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a run on the host, as segments leave it and begin with it, and the model that is made from it. Arrays
// hold what device memory holds.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/replicas/synchronize.h"

namespace arbalest {

// All that a learner has learnt.
struct LearnerState {
  std::vector<std::byte> weights, statistics;  // float[P], float[S]
  std::vector<std::vector<std::byte>> slots;   // float[P] each: the optimiser's
  int64_t updates = 0;                         // that the slots have seen since they were zeros
  double correction = 0;                       // of w − z_prev: the share that the next update still takes away
  int32_t host = 0;                            // whose average it follows, if hosts average apart
};

// The average that learners are corrected towards: z and z_prev, float[P] each.
struct AverageState {
  std::vector<std::byte> now, before;
};

// The exponential moving average of the weights that the learners share (ops/optim/moving_average.h).
struct MovingAverage {
  double decay = 0;                // per update; 0: there is none
  std::vector<std::byte> weights;  // float[P]
  int64_t updates = 0;             // that it has seen
  int64_t within = 0;              // of these in the period of groups that is under way
};

// All that the learners of a run have learnt.
struct RunState {
  std::vector<LearnerState> learners;  // by number
  // One average, or one for each host if hosts average apart; empty unless the strategy corrects.
  std::vector<AverageState> averages;
  std::vector<std::byte> frozen;  // float[F]: what never changes
  bool averaged = false;          // no update has corrected the learners by the last averaging yet
  int64_t unaveraged = 0;         // updates that each learner has made since the last averaging
  int64_t apart = 0;              // the same since the last averaging of all hosts
  MovingAverage moving_average;
};

// A model as it is validated and saved.
struct ModelState {
  std::vector<std::byte> weights, statistics, frozen;
};

// A sum of float arrays of one length, in double.
class WeightedSum {
 public:
  // Adds coefficient · floats.
  void add(double coefficient, const std::vector<std::byte>& floats);
  std::vector<std::byte> bytes() const;  // in float

 private:
  std::vector<double> sum_;
};

// The mean of the learners' weights, float[P], summed in double.
std::vector<std::byte> mean_weights(const std::vector<LearnerState>& learners);

// The state once hosts that average apart have met: they have one average, and the learners of each have moved as far
// as its average has. Without averages, or with one, as it is.
RunState with_hosts_met(RunState state);

// The model that the learners share under `strategy`. Where learners have made updates since the last averaging, they
// are averaged once more. Throws GraphError if there is no such strategy.
ModelState shared_model(const RunState& state, const StrategyOptions& strategy);

// The moving average once it has taken in `weights`, the shared model's, if learners have made updates since the
// last averaging; else as it is.
MovingAverage caught_up(const RunState& state, const std::vector<std::byte>& weights);

// Statistics of the k learners together: mean = Σ mean_j / k, variance = Σ (variance_j + mean_j²) / k − mean².
std::vector<std::byte> merged_statistics(const std::vector<LearnerState>& learners);

// The state of `learners` learners on each of `devices` devices that go on from `state`. Learners that are there keep
// their weights, and the next update corrects them as the last averaging asked; new ones start from the shared model,
// with slots of zeros; surplus ones end. A single learner, and learners of a strategy that replaced their models, have
// the shared model's weights. The strategy that goes on may change that. The moving average goes on, caught up.
RunState with_learners(const RunState& state, size_t devices, size_t learners, const StrategyOptions& before,
                       const StrategyOptions& after);
// The same for learners that each go on from the one with that number in `state`; kNewLearner: from none.
RunState with_learners(const RunState& state, const std::vector<int64_t>& sources, const StrategyOptions& before,
                       const StrategyOptions& after);
inline constexpr int64_t kNewLearner = -1;

// The run before a change of learners, for Strategy::carry_over() of the strategy that goes on.
struct CarryOver {
  const RunState& state;
  const ModelState& model;  // the shared model
  const StrategyOptions& before;
  std::vector<bool> goes_on;  // by learner of the next state: it was there before
};

}  // namespace arbalest
