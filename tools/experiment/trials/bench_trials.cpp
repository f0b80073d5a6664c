// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/bench_trials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/process.h"

namespace arbalest {
namespace {

std::string own_place(const std::string& key, const std::string& cell) {
  return key + " " + cell;
}
std::string place_of(const std::string& cell, Measure measure, int64_t repetition) {
  return fmt::format("{} {} {}", cell, name_of(measure), repetition);
}

// The settings in which two cells differ: "batch 32, was 16"; none if they are of other devices, which both may stay.
std::vector<std::string> changes_of(const Settings& before, const Settings& now) {
  std::vector<std::string> changes;
  for (const char* place : {"devices", "hosts", "machine"}) {
    if (setting_of(before, place) != setting_of(now, place)) return {};
  }
  for (const auto& [name, value] : now) {
    const auto earlier = before.find(name);
    if (earlier == before.end()) changes.push_back(fmt::format("{} {}, was not set", name, value));
    if (earlier != before.end() && earlier->second != value) {
      changes.push_back(fmt::format("{} {}, was {}", name, value, earlier->second));
    }
  }
  for (const auto& [name, value] : before) {
    if (!now.contains(name)) changes.push_back(fmt::format("{} is not set, was {}", name, value));
  }
  return changes;
}

// The changes from that of the results which is the most alike; none if all differ in more than two settings.
std::vector<std::string> fewest_changes(const std::vector<const TrialResult*>& gone, const Trial& trial) {
  constexpr size_t kMost = 2;
  std::vector<std::string> fewest;
  for (const TrialResult* result : gone) {
    if (result->measure != trial.measure) continue;
    std::vector<std::string> changes = changes_of(result->settings, trial.cell->settings);
    const bool fits = !changes.empty() && changes.size() <= kMost;
    if (fits && (fewest.empty() || changes.size() < fewest.size())) fewest = std::move(changes);
  }
  return fewest;
}

TrialResult for_cell(TrialResult result, const Trial& trial) {
  result.cell = trial.cell->id;
  result.name = trial.cell->name;
  result.settings = trial.cell->settings;
  return result;
}

}  // namespace

void BenchTrials::take(std::vector<TrialResult> results) {
  results_ = std::move(results);
  results_.insert(results_.end(), held_.begin(), held_.end());
  found_.clear();
  for (const TrialResult& result : results_) {
    for (const std::string& place :
         {result.key, own_place(result.key, result.cell), place_of(result.cell, result.measure, result.repetition)}) {
      found_[place] = &result;
    }
  }
}

const TrialResult* BenchTrials::result_of(const Trial& trial) const {
  std::vector<std::string> places = {own_place(trial.key, trial.cell->id)};
  if (collects_) places.push_back(place_of(trial.cell->id, trial.measure, trial.repetition));
  if (!collects_ || !trial.cell->peer.empty()) places.push_back(trial.key);
  for (const std::string& place : places) {
    if (const auto found = found_.find(place); found != found_.end()) return found->second;
  }
  return nullptr;
}

std::vector<const Trial*> BenchTrials::pending(const Again& again) const {
  std::vector<const Trial*> waiting;
  std::set<std::string> seen;
  for (const Trial& trial : trials_) {
    const TrialResult* result = result_of(trial);
    const bool once_more =
        result && ((again.failed && !result->error.empty()) || (again.disturbed && result->disturbed()));
    const bool done = result && !once_more;
    if (!done && seen.insert(trial.key).second) waiting.push_back(&trial);
  }
  return waiting;
}

std::vector<TrialResult> BenchTrials::current() const {
  std::vector<TrialResult> current;
  for (const Trial& trial : trials_) {
    const TrialResult* result = result_of(trial);
    if (!result) continue;
    current.push_back(*result);
    current.back().cell = trial.cell->id;  // another program's trial may be that of several cells
  }
  return current;
}

bool BenchTrials::all_good() const {
  return std::all_of(trials_.begin(), trials_.end(), [&](const Trial& trial) {
    const TrialResult* result = result_of(trial);
    return result && (result->error.empty() || result->too_large);
  });
}

void BenchTrials::tell_changes() const {
  std::set<std::string> cells;
  for (const Trial& trial : trials_) cells.insert(trial.cell->id);
  std::vector<const TrialResult*> gone;  // of cells that the file had earlier
  for (const TrialResult& result : results_) {
    if (!cells.contains(result.cell)) gone.push_back(&result);
  }
  std::map<std::string, std::set<std::string>> cells_by_cause;
  const auto add = [&](const std::vector<std::string>& causes, const Trial& trial) {
    if (!causes.empty()) cells_by_cause[fmt::format("{}", fmt::join(causes, "; "))].insert(trial.cell->name);
  };
  for (const Trial& trial : trials_) {
    if (result_of(trial)) continue;
    bool measured = false;
    for (const TrialResult& earlier : results_) {
      if (earlier.cell != trial.cell->id || earlier.measure != trial.measure) continue;
      measured = true;
      add(differences(earlier.identity, trial.identity), trial);
    }
    if (!measured) add(fewest_changes(gone, trial), trial);
  }
  for (const auto& [cause, names] : cells_by_cause) {
    warn(fmt::format("changed since they were measured ({}): {}", cause, fmt::join(names, "; ")));
  }
}

void BenchTrials::add_for_all(ResultsFile& written, const TrialResult& result) const {
  written.add(result);
  for (const Trial& trial : trials_) {
    if (trial.key != result.key || trial.cell->id == result.cell) continue;
    written.add(for_cell(result, trial));
  }
}

bool BenchTrials::add_missing(ResultsFile& written) const {
  std::vector<TrialResult> missing;
  for (const Trial& trial : trials_) {
    const TrialResult* known = result_of(trial);
    if (!known || known->cell == trial.cell->id || known->too_large) continue;
    missing.push_back(for_cell(*known, trial));
  }
  for (TrialResult& each : missing) written.add(std::move(each));
  return !missing.empty();
}

}  // namespace arbalest
