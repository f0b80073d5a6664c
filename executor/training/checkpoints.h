// SPDX-License-Identifier: Apache-2.0
#pragma once
// When a run takes checkpoints, and what goes into them.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/segment/segment.h"
#include "executor/session/event_queue.h"
#include "executor/training/checkpoint_writer.h"
#include "executor/training/learner_search.h"
#include "executor/training/model_files.h"
#include "executor/training/run_identity.h"

namespace arbalest {

// The parts of a run that a checkpoint is made of.
struct RunParts {
  const Prepared& prepared;
  const Segment& segment;
  const Monitor& monitor;
  const LearnerSearch* search;
  const ModelFiles& files;
};

class Checkpoints {
 public:
  // Before anything is trained or written: the folder, and whether it is this run's. `prepared`: as the run was
  // started. What changes on the way makes no other run of it. Keeps the references to options, monitor and events.
  // Rank 0 decides when checkpoints are taken, and all ranks take them together.
  Checkpoints(const SessionOptions& options, const Prepared& prepared, const Monitor& monitor, EventQueue& events,
              std::chrono::steady_clock::time_point started);

  const RunIdentity& identity() const { return identity_; }
  const std::vector<std::string>& changes() const { return changes_; }  // of the learning rate, since the run's start
  // The identity of a run that goes on with other devices.
  void set_identity(const Prepared& prepared, const Monitor& monitor) {
    identity_ = identity_of(prepared, options_, monitor.best_metric());
  }
  void set_layout(const Loop& training) { layout_ = std::make_shared<CheckpointLayout>(training); }
  const CheckpointLayout& layout() const { return *layout_; }
  void set_latest(const std::string& path) { latest_ = path; }  // the file that the run goes on from

  double seconds() const;  // since the run's start
  // The iteration of the segment's plan at which the run rests next for a checkpoint, counted from the segment's
  // start; SchedulerOptions::kNoRest if there is none.
  int64_t plan_next(const Segment& segment);
  int64_t next() const { return next_; }
  // Whether a rest for one is wanted, and the disk has time for it.
  bool wants_rest() const { return due() && !writer_->busy(); }
  // At a rest after so many iterations: whether one is to be taken. If the disk is still busy with the one before, this
  // one comes later.
  bool wants(int64_t iterations);
  // Takes one now. `ended`: why the run came to its end; Unknown: it goes on.
  void take(const RunParts& run, RunEnd ended);
  // The end of the run is one more, if it `takes` it, so that a run that is asked to go on knows that nothing is left.
  void finish(const RunParts& run, RunFinished& end, bool takes);

  void wait() const {
    if (writer_) writer_->wait();
  }
  // True if a checkpoint was not written because it would have held something that is not finite.
  bool found_not_finite() const { return writer_ && writer_->found_not_finite(); }
  // Returns what it was, once. All processes call this and get the same.
  std::optional<CheckpointWriter::NotFinite> take_not_finite();
  void go_back();  // before the run goes on from an earlier checkpoint
  // Before the run goes on without ranks that are lost. A checkpoint that was given up with them is taken anew soon.
  void wait_after_loss();

 private:
  bool decides() const { return writer_ && (!options_.ranks || options_.ranks->first()); }
  bool due() const;
  void add_run(const RunParts& run, RunEnd ended, Checkpoint& taken) const;
  int64_t divide(Checkpoint& taken) const;

  const SessionOptions& options_;
  EventQueue& events_;
  const std::chrono::steady_clock::time_point started_;
  const std::vector<std::string> changes_;
  RunIdentity identity_;
  std::shared_ptr<const CheckpointLayout> layout_;  // of the segment
  double last_ = 0;                                 // seconds()
  std::string latest_;                              // its file
  int64_t next_ = SchedulerOptions::kNoRest;
  bool overdue_ = false;  // a checkpoint that the disk had no time for, or that was given up
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace arbalest
