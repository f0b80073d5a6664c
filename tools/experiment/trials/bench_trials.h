// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trials of a bench, and which results that are known are theirs.

#include <map>
#include <string>
#include <vector>

#include "tools/experiment/trials/results.h"
#include "tools/experiment/trials/trials.h"

namespace arbalest {

class BenchTrials {
 public:
  // `collects`: results may be of another build and of other devices than are here. Then a command that several cells
  // of this program share says nothing of the device that a cell was measured on; each has a result of its own.
  explicit BenchTrials(bool collects) : collects_(collects) {}
  BenchTrials(const BenchTrials&) = delete;  // found_ points to results_
  BenchTrials& operator=(const BenchTrials&) = delete;

  const std::vector<Trial>& all() const { return trials_; }
  void set(std::vector<Trial> trials) { trials_ = std::move(trials); }

  // Takes the results of a file in place of earlier ones.
  void take(std::vector<TrialResult> results);
  // Keeps a result that stands in no file.
  void hold(TrialResult result) { held_.push_back(std::move(result)); }
  const std::vector<TrialResult>& results() const { return results_; }

  // The trial's result, or nullptr. A cell's own result comes before one of another cell whose command is the same.
  const TrialResult* result_of(const Trial& trial) const;
  // Results that do not count: of trials that failed, or that were disturbed.
  struct Again {
    bool failed = false, disturbed = false;
  };
  // Trials without a result that counts, each key once.
  std::vector<const Trial*> pending(const Again& again) const;
  // The results of the trials.
  std::vector<TrialResult> current() const;
  // Whether each trial has a result, and none failed but for want of memory.
  bool all_good() const;
  // Names what makes earlier results of the same cells count no longer.
  void tell_changes() const;

  // Writes the result for each cell that has the trial's command.
  void add_for_all(ResultsFile& written, const TrialResult& result) const;
  // Writes known results for cells that have none of their own yet, as with --cell. Returns whether there are any.
  bool add_missing(ResultsFile& written) const;

 private:
  const bool collects_;
  std::vector<Trial> trials_;
  std::vector<TrialResult> results_, held_;
  std::map<std::string, const TrialResult*> found_;  // by key, by key and cell, by cell and repetition
};

}  // namespace arbalest
