// SPDX-License-Identifier: Apache-2.0
#pragma once
// The log of a sweep, DIR/sweep.jsonl: its trials, what became of them, and the decisions about them. It is all that a
// sweep that was ended needs to go on, and all that a leaderboard is made of.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/sweep/sweep_schedule.h"
#include "tools/sweep/vary.h"
#include "tools/watch/event_stream.h"

namespace arbalest {

// A sweep before it runs. Two are the same if their words, trials and search are.
struct SweepPlan {
  std::string title;                 // the graph's name
  std::vector<std::string> command;  // that started it, in this directory
  std::string directory;
  std::vector<std::string> words;  // of `arbalest run`, that all trials share
  std::vector<TrialSettings> trials;
  std::optional<HalvingRule> halving;
  bool finds_rate = false;  // trials are short, and differ in a constant learning rate
  // The override that names the data of a trial's fold, but for the fold's number at its end:
  // "prefetch.source=mnist:DIR?folds=5&fold="; "": there are no folds.
  std::string fold;
  std::vector<std::vector<std::string>> together;  // names of settings that change together
  std::map<std::string, std::string> inputs;       // hashes of graphs, models and weights, by the names of their files

  bool has_words_of(const SweepPlan& other) const;  // settings that differ may stand in any order
  bool operator==(const SweepPlan& other) const;
};

// How a job of a trial has ended.
struct SweepResult {
  SweepJob job;
  std::string error;             // why it failed; "": it has not
  std::string metric;            // what `value` is of
  bool lower = false;            // whether less of it is better
  std::optional<double> value;   // of the best validation, or the last epoch's loss if nothing is to be validated
  int64_t epoch = 0;             // of that validation
  std::optional<double> loss;    // of training, at last
  bool validated = false;        // whether there was a validation
  int64_t epochs = 0;            // that have been trained, the last one perhaps in part
  int64_t iterations = 0;        // that have been trained, if it ended without an error
  int64_t per_epoch = 0;         // iterations
  double seconds = 0;            // of training, in all jobs of the trial
  double images_per_second = 0;  // of this job
  int64_t images = 0;            // that this job has trained; while it runs
  std::string end;               // RunEnd's name: "complete", "until"

  std::optional<double> score() const;  // greater is better; none: it failed, or its value is undefined
  bool ended_within_epoch() const { return per_epoch > 0 && iterations % per_epoch != 0; }
};

// The file of a sweep in its folder, and the folder of one of its trials: "DIR/trial-007" of trial 6.
std::string sweep_log_path(const std::string& folder);
std::string trial_folder(const std::string& folder, int trial);

// The content of a log.
struct SweepRecord {
  SweepPlan plan;
  std::vector<SweepResult> results;  // in their order
  bool finished = false;
  std::vector<std::string> faults;  // JsonLines::faults: of lines that do not count
};

// Throws RunError if the file cannot be read, or its first line, which has the plan.
SweepRecord read_sweep_log(const std::string& path);

class SweepLog {
 public:
  // Begins a log, or goes on with one. Throws RunError if the file cannot be written, OutputInUse if another sweep
  // writes it.
  SweepLog(const std::string& folder, const SweepPlan& plan, bool goes_on);
  void started(const SweepJob& job, int lane, const std::string& device);
  void result(const SweepResult& result);
  void lanes(int left, const std::string& why);
  void finished(double seconds);
  bool failed() const { return file_.failed(); }

 private:
  EventStream file_;
};

}  // namespace arbalest
