// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a segment that a lost process ended in the midst of everything: each of the others has made as many
// updates and averagings as it came to.

#include <cstdint>
#include <functional>
#include <vector>

#include "executor/segment/cursor.h"
#include "executor/segment/segment_state.h"
#include "executor/session/run_state.h"

namespace arbalest {

struct LeftState {
  // Averages are those after the last averaging that this process has seen to its end: one, or that of its host at the
  // host's number. Learners that this averaging has not corrected yet have it as LearnerState::correction.
  RunState run;
  std::vector<int64_t> iterations;  // of the run, by learner
  int64_t averagings = 0;           // of the segment, that run.averages have seen
  int64_t segment = 0;              // number of the segment in the run
  StrategyOptions strategy;         // by which the learners came there
  // An averaging between hosts has begun to change learners, and has not ended: how far learners are from their host's
  // average is unknown then.
  bool meeting = false;
  int64_t fresh = 0;  // learners of a process that has come back, which have learnt nothing
  // Once all are together: by learner of the processes that are there its number in `run`, or kNewLearner.
  std::vector<int64_t> sources;
  Cursor next;  // after the latest update of the learner that is furthest ahead
};

// Reads the state of this process's learners. `ended`: how many instances of a task have ended; nothing is under way.
LeftState left_state(const SegmentState& state, const Plan& plan, const SegmentClock& clock,
                     const std::function<int64_t(TaskId)>& ended);

}  // namespace arbalest
