// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sweep while it runs: its log, its lines on the terminal, the models that it keeps.

#include <optional>

#include "tools/command/options.h"
#include "tools/sweep/sweep_log.h"
#include "tools/sweep/trial_runs.h"

namespace arbalest {

struct SweepEnd {
  SweepRecord record;
  bool over = false;  // false: it was interrupted
};

// Whether a sweep's best models predict what they have not seen.
bool tells_predictions(const SweepPlan& plan);

// Runs the trials of the plan, at most `most` at once, but those that `before` has, and writes their log. Throws what
// prevents trials altogether; a trial that fails is in the record.
SweepEnd run_sweep(const SweepOptions& options, SweepPlan plan, std::optional<SweepRecord> before,
                   const SweepSurroundings& around, int most, SweepLog& log);

}  // namespace arbalest
