// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exponential moving average e of the weights w, corrected for its start: with decay d per update,
//   e_t = e_t−1 + (1 − d) / (1 − dᵗ) (w_t − e_t−1),
// If u updates make one step of it, e_t+u = e_t + (1 − dᵘ) / (1 − dᵗ⁺ᵘ) (w_t+u − e_t). After the first step e = w.

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "graph/graph.h"

namespace arbalest {

struct MovingAverageInput {
  enum : size_t { Weights, Average, Progress };
};
struct MovingAverageOutput {
  enum : size_t { Average, Progress };
};

// Progress of a moving average, in the memory of its device: int64[2].
struct MovingAverageProgress {
  int64_t updates = 0;  // that the average has seen: t
  int64_t within = 0;   // of these, those in the current period
};

// The share of its distance from the weights by which an average moves: it has seen `seen` updates, and `updates` more
// have been made. 1 if it has seen none. log_decay: ln d < 0.
ARBALEST_HOST_DEVICE inline double moving_average_share(double log_decay, int64_t seen, int64_t updates) {
  return std::expm1(log_decay * double(updates)) / std::expm1(log_decay * double(seen + updates));
}

// Steps of a moving average: `every` updates make a step; the last step of each `period` updates is cut short.
struct MovingAverageSteps {
  double log_decay;
  int64_t every, period;

  static MovingAverageSteps of(const Node& node) {
    return {std::log(float_attribute(node, "decay")), int_attribute(node, "every"), int_attribute(node, "period")};
  }
  // Number of updates in the next step.
  ARBALEST_HOST_DEVICE int64_t updates(const MovingAverageProgress& progress) const {
    const int64_t left = period - progress.within;
    return every < left ? every : left;
  }
  ARBALEST_HOST_DEVICE double share(const MovingAverageProgress& progress) const {
    return moving_average_share(log_decay, progress.updates, updates(progress));
  }
  ARBALEST_HOST_DEVICE MovingAverageProgress after(const MovingAverageProgress& progress) const {
    const int64_t made = updates(progress), within = progress.within + made;
    return {progress.updates + made, within == period ? 0 : within};
  }
};

}  // namespace arbalest
