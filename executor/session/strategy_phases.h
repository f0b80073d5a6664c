// SPDX-License-Identifier: Apache-2.0
#pragma once
// The strategies of a run, one after the other: each begins with an epoch, and with a plan of its own.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/optim/train.h"
#include "ops/replicas/synchronize.h"

namespace arbalest {

struct StrategyPhase {
  int64_t from = 0;  // epoch
  StrategyOptions strategy;
};

// The strategies by which the learners of a run agree, as the graph's Synchronize nodes say; at least one. `replaced`:
// the name that takes the place of the graph's. Throws GraphError if that would be the place of several.
std::vector<StrategyPhase> strategy_phases(const Graph& graph, const std::optional<std::string>& replaced,
                                           int64_t learners);

// The rates of a run at the beginnings of its epochs, for strategies that follow them.
struct EpochRates {
  LearningRate schedule;
  double scale = 1;  // of the rate
  double epochs = 1;
  int64_t updates = 1;  // of an epoch
};

// The phases with a phase of its own for each number of updates to which `every` grows. Throws GraphError if the run
// has more than a million epochs.
std::vector<StrategyPhase> grown(const std::vector<StrategyPhase>& phases, const EpochRates& rates);

// The phase that holds in an epoch.
struct PhaseAt {
  const StrategyPhase& phase;
  int64_t until = INT64_MAX;  // the epoch from which the next one holds; INT64_MAX: there is none
};
PhaseAt phase_at(const std::vector<StrategyPhase>& phases, int64_t epoch);

// "ssgd, from epoch 28 on papa every 10 updates". Epochs count from 1.
std::string to_string(const std::vector<StrategyPhase>& phases);

}  // namespace arbalest
