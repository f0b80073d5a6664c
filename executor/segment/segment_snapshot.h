// SPDX-License-Identifier: Apache-2.0
#pragma once
// A segment that stands still between two iterations, as a checkpoint keeps it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/plan/plan.h"
#include "executor/segment/cursor.h"
#include "executor/session/run_state.h"
#include "passes/program.h"

namespace arbalest {

// The complete state of a segment that stands still between two iterations. Under the same plan, the segment goes on
// from it as if it had never stopped.
struct SegmentSnapshot {
  Cursor from;                                            // where the segment begins
  int32_t learners = 1;                                   // per device
  int64_t first_learner = 0;                              // of `state` and `kept`; not 0 if these are of one rank alone
  PlanPosition at;                                        // in its plan
  RunState state;                                         // corrections and updates as state() has them
  std::vector<double> corrections;                        // by learner: those that the segment began with
  std::vector<int64_t> updates;                           // the same
  std::vector<std::vector<std::vector<std::byte>>> kept;  // by learner: the values that kept_values() names
  int64_t reported = 0;                                   // iterations that have been reported
  std::vector<double> trained, validated;                 // the sums when they were last read
  std::vector<std::vector<double>> tallies;               // by validating device, when a validation last ended
  bool validating = false;                                // one is under way, with the weights and statistics in:
  ModelState model;
};

// Values that a learner's memory keeps from iteration to iteration besides weights, slots and statistics: tallies, and
// sums of gradients that have made no update yet.
std::vector<ValueId> kept_values(const Loop& training);
// Number of bytes at the end of a kept value that hold the weights of batches, which checkpoints of earlier versions
// lack.
int64_t weight_bytes_of(const Loop& training, ValueId kept);

// Completes a snapshot from a checkpoint of before means had weights of their own: samples weighed 1 each. `rounds`:
// iterations of an epoch; `validates`: the plan validates.
SegmentSnapshot with_weights(SegmentSnapshot snapshot, const Program& program, int64_t rounds, bool validates);

// The snapshot of a plan that ends before its first validation, and so has none, as one of a plan that validates on so
// many devices, with so many sums each.
SegmentSnapshot with_validation(SegmentSnapshot snapshot, int64_t devices, size_t sums);

// The snapshot as if the last validation had ended before the segment. Sums of validations begin anew with 0.
SegmentSnapshot without_last_validation(SegmentSnapshot snapshot);

}  // namespace arbalest
