// SPDX-License-Identifier: Apache-2.0

// Population parameter averaging (Jolicoeur-Martineau et al. 2023): at the first update of a group
// w_j ← (the update of w_j) − α(w_j − z), where z is the mean of all w_j. Tasks are those of SMA with β = 1 and μ = 0,
// but for two things: updates read z_n+1 and so wait for it, and learners never start again from z. They are to stay
// different.

#include "executor/strategies/sma.h"

namespace arbalest {

std::unique_ptr<const Strategy> make_papa() {
  return make_correcting({.name = "papa",
                          .averages_models = true,
                          .corrects = true,
                          .draws_to_mean = true,
                          .reads = {"every", "alpha", "follows_rate", "growth"},
                          .every = 10,
                          .alpha = 0.01});
}

}  // namespace arbalest
