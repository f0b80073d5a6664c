// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time in a segment: for each iteration of its plan the epoch, the batch, the learning rate and the scalars, and
// the position of the run after it. Arithmetic alone: no device, no memory.

#include <cstdint>
#include <functional>
#include <optional>

#include "executor/plan/strategy.h"
#include "executor/segment/cursor.h"
#include "executor/session/monitor.h"
#include "ops/optim/train.h"

namespace arbalest {

struct Prepared;        // executor/session/session.h
struct SessionOptions;  // executor/session/session.h

// Iterations in groups, as a coarser clock of the plan counts them.
struct IterationGroups {
  ClockRelation relation;
  int64_t complete = 0;  // groups that the plan completes

  int64_t of(int64_t tick) const { return relation.coarse_of(tick); }
  int64_t first_of(int64_t group) const { return group == 0 ? 0 : last_of(group - 1) + 1; }
  int64_t last_of(int64_t group) const { return relation.last_of(group); }
};

// The numbers of a segment that its clock counts with.
struct SegmentTimes {
  Cursor from;
  int64_t learners = 1;    // in all
  int64_t iterations = 0;  // of the plan
  int64_t rounds = 1;      // iterations of an epoch, from where the segment begins
  int64_t batch = 1;
  int64_t samples = 1;  // of the split
  int64_t accumulate = 1;
  std::optional<IterationGroups> sync, hosts, validations;  // none: the plan has no such clock
  LearningRate schedule;
  double total_epochs = 1;  // of the run
  double rate_scale = 1;
  // As Monitor has them, by the number of validations before.
  std::function<double(int64_t validations)> rate_factor;
  std::function<int64_t(int64_t validations)> rate_drops;
  uint64_t seed = 1;
  StrategyOptions strategy;
  bool can_restart = false;  // the program was made for averaging that starts again
};

// The times of a segment of the prepared run under `plan`. `monitor` outlives the result.
SegmentTimes times_of(const Prepared& prepared, const SessionOptions& options, const Plan& plan, const Cursor& from,
                      const Monitor& monitor);

// The state with which a learner began the segment: see LearnerState.
struct LearnerStart {
  double correction = 0;
  int64_t updates = 0;
};

class SegmentClock {
 public:
  explicit SegmentClock(SegmentTimes times);

  const SegmentTimes& times() const { return times_; }
  void add_validations_before(int64_t more) { times_.from.validations += more; }
  int64_t epoch_of(int64_t tick) const { return times_.from.epoch + tick / times_.rounds; }
  int64_t batch_of(int64_t tick, int64_t learner) const;
  bool ends_epoch(int64_t tick) const { return (tick + 1) % times_.rounds == 0; }
  bool validates() const { return times_.validations && times_.validations->complete > 0; }
  bool validates_after(int64_t tick) const;           // the weights after this iteration are validated
  int64_t validated_after(int64_t validation) const;  // complete iterations with whose weights it is made
  double rate(int64_t tick) const;
  double rate_share(int64_t tick) const;  // of the schedule's greatest rate
  // Updates before iteration `tick` that the optimiser's slots of a learner have seen since they were zeros. It began
  // the segment with `updates`.
  int64_t updates_before(int64_t tick, int64_t updates) const;
  StepScalars scalars(int64_t tick, const LearnerStart& learner) const;
  int64_t averagings(int64_t ticks) const;  // complete after so many iterations
  int64_t unaveraged(int64_t ticks) const;  // updates since the last averaging
  int64_t apart(int64_t ticks) const;       // updates since the last averaging of all hosts

  // The beginning of the next segment if this one ends after so many iterations. Batches that were accumulated and not
  // yet used for an update are read again.
  Cursor cursor(int64_t ticks) const;
  RunPosition position(int64_t ticks) const;

 private:
  int64_t updates_since(const std::optional<IterationGroups>& groups, int64_t ticks) const;
  double seen(int64_t tick) const;
  int64_t validations_before(int64_t tick) const;
  int64_t rate_drops(int64_t tick) const;
  bool rate_dropped(int64_t group) const;
  int64_t last_restart(int64_t group) const;
  Cursor after(int64_t ticks) const;

  SegmentTimes times_;
  const Strategy& strategy_;
  const int64_t drops_before_;  // of the rate, by the group before the first
};

}  // namespace arbalest
