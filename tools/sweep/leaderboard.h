// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trials of a sweep, the best first, and what their settings do.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/experiment/answer/table.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {

// Trials that differ in seed and fold alone.
struct TrialGroup {
  TrialSettings settings;       // without seed and fold
  std::vector<int> trials;      // of the sweep, in order
  std::vector<double> values;   // of those that have one
  std::vector<size_t> results;  // the last of each of these, in SweepRecord::results
  int failed = 0;
  int64_t epochs = 0;          // the most that one was trained, of those that have a value if there are any
  int64_t iterations = 0;      // the most
  std::optional<double> mean;  // of the values; none: there is no value
  std::optional<Confidence>
      interval;  // of 95 %, by Student's distribution; none: of fewer than two values, or of folds
  // The standard deviation, of folds: their models share most of their data, so that no interval follows.
  std::optional<double> deviation;
};

// The group of each trial, from 0 on: trials that differ in seed and fold alone.
std::vector<int> groups_of_trials(const SweepPlan& plan);

struct Leaderboard {
  std::string metric;
  bool lower = false;          // whether less of it is better
  std::string why;             // trials are ranked by another metric than the graph's; "": they are not
  bool in_iterations = false;  // how far trials were trained is said in these, since one ended within an epoch
  // The best mean first. Those that trained less far come later, and those of which a trial failed last.
  std::vector<TrialGroup> groups;
  int done = 0, failed = 0;  // trials
};

// The record as its trials are ranked: by the loss of training if none that has ended was validated, as if all end
// within the first epoch.
SweepRecord as_ranked(SweepRecord record);

Leaderboard leaderboard_of(const SweepRecord& record);

// The record in which trials of a search have been trained equally far: to its first rung. What settings do can be read
// from that alone, since later rungs have the best trials only. Without a search it is the record.
SweepRecord at_first_rung(SweepRecord record);

// The last result of a trial; nullptr if there is none.
const SweepResult* last_result(const SweepRecord& record, int trial);

// The trials that have ended and not failed, the best first: by their last results; those of a search that trained
// further come before the others. Trials without a value come last.
std::vector<int> ranked_trials(const SweepRecord& record);

// The groups of which all trials have ended and none has failed, the best first. Others may still become better: a
// trial that failed may run once more.
std::vector<const TrialGroup*> ranked_whole_groups(const Leaderboard& board, const SweepRecord& record);

// How many trials have a result and are not among those under way, as trials that a search promotes are.
size_t ended_trials(const SweepRecord& record, const std::set<int>& under_way);

// The groups, and for each setting with several values the mean of its trials at each of them.
std::vector<ResultTable> tables_of(const Leaderboard& board, const SweepRecord& record);

}  // namespace arbalest
