// SPDX-License-Identifier: Apache-2.0
#pragma once
// Faults of trials that are found before the first one trains.

#include "tools/sweep/trial_runs.h"

namespace arbalest {

// Checks the trials as their runs would be checked; those that differ in seed or fold alone are planned once. Notes in
// the plan what the files hold that they read. Throws GraphError or RunError that names the trial.
void check_trials(SweepPlan& plan, const SweepSurroundings& around);

}  // namespace arbalest
