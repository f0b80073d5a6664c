// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the number of learners per device (--learners auto). It starts with one, measures once the throughput is
// steady, doubles while doubling pays, and keeps the smallest number whose doubling does not.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace arbalest {

class LearnerTuner {
 public:
  struct Options {
    double threshold = 0.10;      // what doubling must gain
    double warmup_seconds = 0.3;  // of a number of learners, before its first window
    int64_t warmup_reports = 4;
    double window_seconds = 0.25;
    double steadiness = 0.04;  // two windows in a row that differ by less are steady
    int64_t most_windows = 6;  // then the median counts
    int32_t most_learners = 64;
  };
  struct Decision {
    int32_t measured = 1, next = 1;  // learners per device
    double images_per_second = 0;
    std::string reason;
  };

  LearnerTuner() = default;
  explicit LearnerTuner(const Options& options) : options_(options) {}

  // The results so far, from which restore() goes on.
  struct State {
    int32_t learners = 1, before = 0;
    double best = 0;
    bool done = false;
  };
  State state() const { return {learners_, before_, best_, done_}; }
  void restore(const State& state) {
    learners_ = state.learners;
    before_ = state.before;
    best_ = state.best;
    done_ = state.done;
  }

  int32_t learners() const { return learners_; }
  bool done() const { return done_; }

  // Takes the seconds and images since training began. Returns a decision once the throughput is steady.
  std::optional<Decision> observe(double seconds, int64_t images);
  // The number of learners that was asked for is not possible: decides for the previous one.
  Decision cannot(const std::string& why);

 private:
  std::optional<double> steady_throughput(double seconds, int64_t images);
  Decision decide(double images_per_second);
  void measure(int32_t learners);

  Options options_;
  int32_t learners_ = 1, before_ = 0;
  double best_ = 0;  // images per second of `before_`
  bool done_ = false;
  int64_t reports_ = 0;
  double began_ = 0, window_began_ = 0;
  int64_t window_images_ = 0;
  std::vector<double> windows_;
};

}  // namespace arbalest
