// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the changes that would pay: each kind of task twice as fast or free, each ring of slots one longer, and fills
// one shorter. Each change is made by itself, in the simulation that what_if.h uses.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "executor/trace/trace_file.h"

namespace arbalest {

struct Payoff {
  enum class Kind : uint8_t { Halved, Removed, LayerHalved, SlotMore, SlotLess };
  Kind kind = Kind::Halved;
  std::string change;         // "cuda:*/learner */step twice as fast", "pinned batch: 4 slots instead of 3"
  std::vector<TaskId> tasks;  // changed tasks
  std::string layer;          // LayerHalved: which, inside of these tasks
  std::vector<EdgeId> edges;  // changed edges, for slots
  double iteration_ns = 0;    // predicted
  double saved = 0;           // of the simulated time per iteration; below 0: slower
};

struct WhatPays {
  double measured_ns = 0, simulated_ns = 0;  // per iteration as it is
  double spread = 0;                         // of the latter, as a share, when it is replayed from elsewhere
  int64_t iterations = 0;                    // simulated
  std::vector<Payoff> changes;               // what saves most first

  // As a share: how far the model is off, and how far nothing that matters takes it. What saves or costs less than that
  // says nothing.
  double error() const { return std::max(std::abs(simulated_ns / measured_ns - 1), spread); }
};

// Empty (measured_ns = 0) if the trace has too few iterations to tell.
WhatPays what_pays(const TraceFile& trace);

}  // namespace arbalest
