// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reports of a segment that runs: of training every few iterations, and of each validation.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "executor/segment/segment_batches.h"
#include "executor/segment/segment_faults.h"
#include "executor/segment/validation_reader.h"
#include "executor/world/ranks.h"

namespace arbalest {

// How much training waits for its input, between two looks.
class InputMeter {
 public:
  // `begins`: the iteration at which the segment goes on, whose first batches cannot but be late.
  void start_at(int64_t begins) { begins_ = latest_.iterations = begins; }
  struct Look {
    int64_t iterations = 0, late = 0;  // late: Scheduler::late_batches()
    ReadingTimes times;
  };
  InputReport since_start(const Look& now, int64_t learners) const { return between({}, now, learners); }
  InputReport since_last(const Look& now, int64_t learners);
  const InputReport& last() const { return last_; }

 private:
  InputReport between(const Look& from, const Look& to, int64_t learners) const;

  int64_t begins_ = 0;
  Look latest_;
  InputReport last_;
};

class SegmentReports {
 public:
  // Keeps the references.
  SegmentReports(const Prepared& prepared, const Binding& binding, const SegmentClock& clock, const SegmentState& state,
                 SegmentBatches& batches, Monitor& monitor, const SegmentOptions& options);

  // The functions of the plan's host tasks, once a run goes on with this scheduler.
  std::function<void(int64_t)> report();
  std::function<void(int64_t)> end_validation();
  void go_on_with(Scheduler& scheduler) { scheduler_ = &scheduler; }
  // If the run ends within a group of iterations, reports the iterations of that group, and checks their loss.
  void report_rest();

  // Throws RunError if the snapshot's sums are not those of such a run.
  void check(const SegmentSnapshot& snapshot) const;
  void go_on_from(const SegmentSnapshot& snapshot);
  void add_to(SegmentSnapshot& snapshot) const;
  // The numbers of sums of training and of validation; 0: the plan does not validate.
  size_t trained_sums() const { return trained_.last().size(); }
  size_t validated_sums() const { return validated_ ? validated_->tally().last().size() : 0; }

  const InputReport& last_input() const { return input_.last(); }
  InputReport input() const;
  std::optional<Diverged> diverged() const;
  void diverge(const Diverged& error);  // keeps the first error
  bool wants_end() const { return end_.wanted.load(); }
  const SegmentFaults& faults() const { return faults_; }

 private:
  const Loop& training() const { return prepared_.program.training(); }
  struct Sums {
    std::vector<double> of_learners;  // of all processes, one after the other
    double seconds = 0;
  };
  std::string part_of_report(const std::vector<double>& sums) const;
  Sums sums_of(const Ranks::Parts& parts) const;
  void with_all(TaskId task, int64_t tick, std::string part, std::function<void(const Ranks::Parts&)> then);
  Monitor::Verdict end_validation(int64_t tick, const Ranks::Parts& parts);
  bool report_trained(int64_t from, int64_t to, bool ends_epoch, std::vector<double> sums);
  std::optional<UpdateCount> take_updates(std::vector<double>& sums) const;
  std::string diverged_learners() const;
  Monitor::Verdict judge(int64_t iterations, const Measurement& measured);
  bool watch(const std::function<void()>& look);
  InputMeter::Look look_at_input(int64_t iterations) const;

  const Prepared& prepared_;
  const Binding& binding_;
  const SegmentClock& clock_;
  const SegmentState& state_;
  SegmentBatches& batches_;
  Monitor& monitor_;
  const SegmentOptions& options_;
  Scheduler* scheduler_ = nullptr;
  SegmentFaults faults_;
  TallyReader trained_;                          // what training has summed since the report before
  std::unique_ptr<ValidationReader> validated_;  // what the validation has that ends
  int64_t reported_ = 0;                         // iterations that have been reported
  InputMeter input_;
  struct End {
    mutable std::mutex mutex;  // of `diverged`
    std::optional<Diverged> diverged;
    std::atomic<bool> wanted{false};  // by on_report()
  };
  End end_;
};

}  // namespace arbalest
