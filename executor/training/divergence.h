// SPDX-License-Identifier: Apache-2.0
#pragma once
// The actions of a run whose loss or weights are no longer finite.

#include <memory>

#include "executor/segment/segment.h"
#include "executor/training/checkpoints.h"

namespace arbalest {

class DivergencePolicy {
 public:
  // Keeps the reference. Throws GraphError if options contradict each other. `tunes`: the run looks for its number of
  // learners.
  DivergencePolicy(const SessionOptions& options, bool tunes);

  bool finds() const { return options_.divergence.find; }  // the run rests after each iteration
  bool outlives() const { return options_.divergence.then == OnDivergence::Rollback || finds(); }
  void begin(const Segment& segment);  // before it runs

  // At rest, or at the end of a segment: whether all is well. A checkpoint may have found weights or statistics that
  // are not finite while the loss was. --find-nan looks at weights and sums each time, and keeps them if they are
  // finite. A run that may go back looks at them at the end of a segment: a checkpoint may still be under way there.
  bool is_finite(Segment& segment, Checkpoints& checkpoints);
  // The error with the node that makes the first value that is not finite, if that is asked for.
  Diverged located(const Diverged& error, const Segment& segment) const;
  // The newest checkpoint that is finite, or the one before if that has been of no use; the same for all processes.
  // Throws if a rollback is not asked for, if the run has made so many of them, and if there is no such checkpoint.
  std::shared_ptr<const CheckpointFile> checkpoint_for(const Diverged& error, int64_t rollbacks);

 private:
  const SessionOptions& options_;
  SegmentSnapshot before_;     // --find-nan: the own one of the segment before its latest iteration
  int64_t gone_back_to_ = -1;  // the iteration of the latest rollback's checkpoint
};

}  // namespace arbalest
