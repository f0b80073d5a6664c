// SPDX-License-Identifier: Apache-2.0
#pragma once
// Results before and after a change.

#include <vector>

#include "tools/experiment/answer/table.h"
#include "tools/experiment/trials/results.h"

namespace arbalest {

struct ResultComparison {
  ResultTable table;
  size_t worse = 0;    // rows that are surely worse, and by more than the threshold
  size_t missing = 0;  // cells that have results before the change alone
  size_t judged = 0;   // rows with kFewest repetitions on both sides, and those that are worse or missing
};

// Compares what both have of each cell, in its last line's graph, options, build and devices: throughput, the time that
// training takes, the time to each target and the metric at its end. A ratio above 1 is better. It is worse if all
// of its interval lies below 1 − threshold, or if a target is no longer met. Rows with fewer than
// kFewest repetitions on a side have no interval, and say so. Trials that failed are as if they were missing.
ResultComparison compare(const std::vector<TrialResult>& before, const std::vector<TrialResult>& after,
                         double threshold, const std::vector<double>& targets = {});

}  // namespace arbalest
