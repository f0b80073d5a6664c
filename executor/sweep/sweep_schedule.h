// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which trials of a sweep train, and how far: each to its end, or by asynchronous successive halving (ASHA, Li et al.,
// "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020). A trial then trains to the first rung; of those
// that a rung has judged, the best 1 / reduction train on to the next. Trials of one group, such as folds of the same
// settings, are judged together, by their mean, and train on together. If one of them fails, the others end at their
// rung.
//
// ASHA decides whenever a job ends, so its decisions depend on which job ends first. Here they follow a clock of their
// own, on which an epoch of any trial takes one unit of time: the same results give the same decisions, on any machine,
// and after a sweep was killed. A job that really ends before its turn waits to be judged; its lane does not.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace arbalest {

// A stretch of a trial: from where it stands up to a rung.
struct SweepJob {
  int trial = 0;  // from 0 on
  int rung = 0;
  int64_t epochs = 0;  // at the rung; 0: as the trial's own settings say
  // Why it was started, beyond the first rung: its group's place among those that the rung before had judged by then.
  int place = 0, judged = 0;
  bool operator==(const SweepJob& other) const {
    return trial == other.trial && rung == other.rung && epochs == other.epochs;
  }
};

struct HalvingRule {
  std::vector<int64_t> epochs;  // of the rungs, ascending; the last is the whole training
  int reduction = 3;            // at least 2
  int lanes = 16;               // jobs under way at once, on the clock of decisions
};

// The rungs of a training of `epochs` from `first` on, each `reduction` times the one before. Throws GraphError unless
// 1 ≤ first ≤ epochs and reduction ≥ 2.
std::vector<int64_t> rungs_between(int64_t first, int64_t epochs, int reduction);

class SweepSchedule {
 public:
  // Without a rule every trial trains to its end, in order. `groups`: that of each trial, from 0 on; empty: each trial
  // is one.
  explicit SweepSchedule(int trials, std::optional<HalvingRule> rule = {}, std::vector<int> groups = {});

  // The next job to start; nothing if all that may start now have been handed out.
  std::optional<SweepJob> next();
  bool has_next() const { return !ready_.empty(); }
  // A job that was handed out has ended. Greater scores are better; none: it failed, and its trial is over.
  void ended(const SweepJob& job, std::optional<double> score);
  // All jobs have ended, and no other follows.
  bool over() const { return ready_.empty() && under_way_ == 0; }

 private:
  struct Lane {
    std::optional<SweepJob> job;
    int64_t ends = 0;  // on the clock of decisions
  };
  struct Rung {
    std::vector<std::pair<double, int>> judged;  // mean score and group, the best first
    std::vector<std::vector<double>> scores;     // by group, of its trials that were judged
    std::vector<bool> promoted;                  // by trial
  };

  void decide();
  void judge(const SweepJob& job, double score);
  bool give(Lane& lane, int64_t now);
  std::optional<SweepJob> promotion(size_t rung, size_t of_best);
  void give_to_best_left(int64_t now);
  int64_t length_of(const SweepJob& job) const;

  const int trials_;
  const std::optional<HalvingRule> rule_;
  int begun_ = 0;                          // trials that have begun
  std::vector<std::vector<int>> members_;  // trials, by group
  std::vector<int> group_;                 // by trial
  std::vector<Lane> lanes_;
  std::vector<Rung> rungs_;
  std::map<std::pair<int, int>, std::optional<double>> scores_;  // by trial and rung, of jobs that have ended
  std::deque<SweepJob> ready_;
  int64_t under_way_ = 0;  // handed out, not ended
};

}  // namespace arbalest
