// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a segment in the memory of its devices: put there before it runs, and read once it stands still.

#include <string>
#include <vector>

#include "executor/run/binding.h"
#include "executor/segment/segment_clock.h"
#include "executor/segment/segment_snapshot.h"
#include "executor/session/initial_values.h"
#include "executor/session/session.h"

namespace arbalest {

struct MovingAverageProgress;

class SegmentState {
 public:
  // Keeps the references. `drawn`: how initial values are made of what no other state fills.
  SegmentState(const Prepared& prepared, const Binding& binding, const SegmentClock& clock, Initialisation drawn);

  // One of these fills the memory of learners, validation and recalibration before the segment runs: as a run begins,
  // after another segment, or in the midst of the plan.
  void put(InitialValues values);
  void put(const RunState& state);
  void put(const SegmentSnapshot& snapshot);
  void put_back(const SegmentSnapshot& snapshot) const;  // training's memory alone

  const LearnerStart& start_of(int64_t learner) const { return starts_[size_t(learner)]; }
  RunState read(int64_t iterations) const;  // after so many
  // Parts of that state.
  LearnerState learner(const Replica& replica, int64_t iterations) const;
  AverageState average(size_t device, int64_t averagings) const;
  size_t average_of(int32_t device) const;  // the number of the average that learners of a device follow
  MovingAverage moving_average() const;
  const std::vector<std::byte>& frozen() const { return frozen_; }
  // The parts of a snapshot that this process's devices hold; `snapshot.at` is known.
  void read(SegmentSnapshot& snapshot) const;
  ModelState validated_model() const;  // as kept for the validation that ends
  std::string name_of(const Replica& learner) const;
  // See Segment::not_finite(); of this process's learners.
  std::string not_finite(const SegmentSnapshot& snapshot) const;

 private:
  const Loop& training() const { return prepared_.program.training(); }
  const std::vector<Replica>& learners() const { return plan_.handles.loops.front().replicas; }
  void put_learners(const RunState& state, int64_t first_learner = 0) const;
  void put_average(size_t device, int64_t averagings, const std::vector<std::byte>& now,
                   const std::vector<std::byte>& before) const;
  void put_moving_average(const MovingAverageProgress& progress, const std::vector<std::byte>& weights) const;
  void put_averages(const RunState& state, int64_t averagings = 0) const;
  bool has_hosts_of(const RunState& state) const;
  void put_validation() const;
  void put_validation(const SegmentSnapshot& snapshot) const;
  void add_frozen(const Loop& loop, InitialValues& values) const;
  std::vector<std::byte> bytes_of(const Loop& loop, const Replica& replica, ValueId value) const;

  const Prepared& prepared_;
  const Binding& binding_;
  const Plan& plan_;
  const SegmentClock& clock_;
  const Initialisation drawn_;
  std::vector<std::byte> frozen_;     // RunState::frozen
  std::vector<LearnerStart> starts_;  // by learner
};

}  // namespace arbalest
