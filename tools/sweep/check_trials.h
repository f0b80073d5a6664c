// SPDX-License-Identifier: Apache-2.0
#pragma once
// Faults of trials that are found before the first one trains.

#include "tools/sweep/trial_runs.h"
#include "tools/sweep/trial_warnings.h"

namespace arbalest {

// Throws GraphError if the number of learners is to be found while training.
void refuse_found_learners(const RunOptions& options);

// Checks the trials as their runs would be checked; those that differ in seed or fold alone are planned once. Notes in
// the plan what the files hold that they read, and tells what was warned of so far. Throws GraphError or RunError that
// names the trial.
void check_trials(SweepPlan& plan, const SweepSurroundings& around, TrialWarnings& warnings);

}  // namespace arbalest
