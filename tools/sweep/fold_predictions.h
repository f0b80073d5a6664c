// SPDX-License-Identifier: Apache-2.0
#pragma once
// Predictions of samples by models that did not train on them.

#include <string>

#include "tools/sweep/leaderboard.h"
#include "tools/sweep/trial_runs.h"

namespace arbalest {

// Writes DIR/predictions.csv: for each trial of a group of folds the samples that it has held out, with its fold, and
// its seed if these vary. Each sample of the training data has a line for each seed. Returns the file's path. Throws
// GraphError if the graph's predictions make no table, or if the group lacks a model that was trained to its end;
// RunError if a model cannot be read, or the file written.
std::string write_fold_predictions(const SweepRecord& record, const TrialGroup& group, const SweepSurroundings& around);

}  // namespace arbalest
