// SPDX-License-Identifier: Apache-2.0
#pragma once
// One run: segments, each under a plan of its own, until the epochs are over.

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "executor/session/event_queue.h"
#include "executor/session/learner_tuner.h"
#include "executor/session/output_paths.h"
#include "executor/session/segment.h"
#include "executor/trace/trace_file.h"
#include "executor/training/checkpoint_writer.h"

namespace arbalest {

class Training {
 public:
  // `events` outlives the training.
  Training(Graph graph, const SessionOptions& options, EventQueue& events);
  ~Training();
  RunFinished run(const std::atomic<bool>& interrupted, double setup_seconds);
  StepProfile profile() const { return segment_->profile(); }  // after run()
  const std::string& trace_written() const { return trace_written_; }
  double seconds() const { return monitor_ ? monitor_->seconds() : 0; }

 private:
  struct Snapshot {
    ModelState model;
    RunPosition at;
  };
  void check_names() const;
  void check_rules() const;
  void start();
  void announce(double setup_seconds);
  void run_segment(const std::atomic<bool>& interrupted);
  void run_segments(const std::atomic<bool>& interrupted);
  void request_rest(int32_t learners, Cursor& from);
  void next_segment();
  void give_up_learners(const std::string& why, const Cursor& at);
  void describe_run();
  std::vector<std::string> device_models() const;
  void time_what_ran();
  void write_trace();
  void write_trace_of_failure() noexcept;
  void observe(const RunPosition& at);
  void tell(const LearnerTuner::Decision& decision, const RunPosition& at);
  void keep(const Monitor::Verdict& verdict, const ModelState& model, const RunPosition& at);
  std::string why_ended() const;
  bool is_over() const;  // by what validations have found
  // The run's notes at its start: notes.cpp.
  std::string note() const;
  std::string resumed_note() const;
  std::string left_out_note() const;
  std::string schedule_note() const;
  std::string precision_note() const;
  std::string learners_note() const;
  double bring_samples(const std::atomic<bool>& interrupted);
  void save_last(RunFinished& end);
  void save_somewhere(const std::string& path, const Snapshot& last, RunFinished& end);
  static void check_finite(const ModelState& model, int64_t iteration, const std::string& path);
  void save(const std::string& path, const ModelState& model, const RunPosition& at, double seconds);
  void make_segment(const Cursor& from);
  // Functions for checkpoints, in take_checkpoints.cpp.
  RunIdentity identity() const;  // of a run whose first segment is prepared
  void begin_checkpoints();
  void change_rate();
  void resume(const CheckpointFile& file);
  void go_on_with_others(Checkpoint& checkpoint, const CheckpointFile& file);
  void let_segment_rest(const std::atomic<bool>& interrupted);
  std::optional<int64_t> rest(const std::atomic<bool>& interrupted);
  int64_t next_checkpoint() const;
  bool checkpoint_due() const;
  bool time_is_up() const { return options_.length.seconds > 0 && seconds_since_start() >= options_.length.seconds; }
  double seconds_since_start() const;
  void take_checkpoint(const std::string& ended);
  void end_checkpoints(RunFinished& end);
  // Functions for a loss that is not finite, in divergence.cpp.
  void check_divergence() const;
  bool is_finite();
  Diverged located(const Diverged& error) const;
  void roll_back(const Diverged& error);

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();  // before data are opened
  const SessionOptions& options_;
  const std::vector<OutputLock> outputs_;  // before anything is opened
  Prepared prepared_;
  PlanRequest whole_;  // the run with as many learners as the segment has
  EventQueue& observer_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<LearnerTuner> tuner_;  // if the number of learners is to be found
  std::unique_ptr<Segment> segment_;
  bool complete_ = false;                 // nothing is left to train
  bool waits_for_input_ = false;          // by the last report that the tuner saw
  std::unique_ptr<TraceRecorder> trace_;  // of the latest segment
  TracedRun traced_;                      // what the trace tells of the run
  std::string trace_written_;             // its file, or ""
  const std::shared_ptr<DeviceCache> cache_ = make_device_cache();
  Snapshot validated_;                              // of the latest validation, if it is kept
  std::string best_error_;                          // why the latest best model could not be saved
  std::shared_ptr<const CheckpointLayout> layout_;  // of the segment
  double last_checkpoint_ = 0;                      // seconds_since_start()
  std::string stopped_;                             // why the run ended before its end: "interrupted", "time limit"
  std::string latest_checkpoint_;                   // its file
  RunIdentity identity_;
  std::vector<std::string> changes_;          // of the learning rate, since the run's start
  int64_t checkpoint_at_ = 0;                 // where the segment's plan rests for the next one, by iterations of it
  SegmentSnapshot before_;                    // --find-nan: the segment before its latest iteration
  int64_t gone_back_to_ = -1;                 // the iteration of the latest rollback's checkpoint
  bool overdue_ = false;                      // a checkpoint that the disk had no time for
  bool trained_ = false;                      // this process has trained, rather than found that nothing is left
  std::unique_ptr<CheckpointWriter> writer_;  // last: its thread uses the others
};

}  // namespace arbalest
