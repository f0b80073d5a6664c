// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples that are prepared once for all trials of a sweep.

#include <cstdint>

#include "tools/sweep/trial_runs.h"

namespace arbalest {

// The bytes of all samples that host nodes prepare for the trials, if these are to stay in the host's memory
// (SweepSurroundings::keeps_samples): nothing says where they are kept, each is always prepared alike, and they take at
// most half of the memory that is left. Otherwise 0. Throws nothing that check_trials() would not say.
int64_t bytes_of_kept_samples(const SweepPlan& plan, const SweepSurroundings& around);

}  // namespace arbalest
