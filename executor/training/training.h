// SPDX-License-Identifier: Apache-2.0
#pragma once
// One run: segments, each under a plan of its own, until the epochs are over.

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "executor/training/divergence.h"
#include "executor/training/other_ranks.h"
#include "executor/training/run_trace.h"
#include "executor/world/agreement.h"

namespace arbalest {

class Training {
 public:
  // `events` outlives the training.
  Training(Graph graph, const SessionOptions& options, EventQueue& events);
  ~Training();
  RunFinished run(const std::stop_token& stop, double setup_seconds);
  StepProfile profile() const { return segment_->profile(); }  // after run()
  const std::string& trace_written() const { return trace_.written(); }
  double seconds() const { return monitor_.seconds(); }

 private:
  RunParts parts() const { return {prepared_, *segment_, monitor_, search_.get(), files_}; }
  bool is_over() const;  // by what validations have found
  // True if the segment has to end at this rest. Only several processes end it at a rest for another number of
  // learners.
  bool segment_is_over() const { return is_over() || (options_.ranks && segment_->reports().wants_end()); }
  bool writes() const { return !options_.ranks || options_.ranks->first(); }  // the run's files
  bool anywhere(bool here) const { return largest_of(options_.ranks.get(), here ? 1 : 0) > 0; }
  RunEnd why_ended() const;
  std::string who_interrupted(const std::stop_token& stop) const;
  bool time_is_up() const;
  void change_rate();
  void start();
  void resume(const CheckpointFile& file);
  CheckpointNeeds needs_of(const Checkpoint& checkpoint) const;
  void go_on_with_others(Checkpoint& checkpoint, const CheckpointFile& file);
  void announce(double setup_seconds);
  std::vector<std::string> models_of_all() const;
  void save_last(RunFinished& end);
  void end_with(RunFinished& end, bool takes_checkpoint);
  // Segments.
  SegmentOptions segment_options();
  void make_segment(const Cursor& from);
  [[nodiscard]] std::unique_lock<std::mutex> while_set_up() const;
  void drop_segment(SegmentBegin why);
  void begin_whole();
  void check_later_strategies() const;
  void request_rest(int32_t learners, Cursor& from);
  void run_segments(const std::stop_token& stop);
  bool run_segment(const std::stop_token& stop);
  SegmentRests rests(const std::stop_token& stop);
  bool nothing_left() const;
  std::optional<int64_t> rest(const std::stop_token& stop);
  void next_segment();
  void give_up_learners(const std::string& why, const Cursor& at);
  void roll_back(const Diverged& error);
  // Ranks that are lost, and that come back.
  void go_on_without_lost(const std::string& why);
  bool takes_back();
  void take_back();
  void come_back();
  void meet_again(const LeftState& mine, const std::string& why);
  void make_segment_of_left(const LeftState& left);

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();  // before data are opened
  SessionOptions options_;  // the devices and ranks are those that are there
  ModelFiles files_;        // holds its files before anything is opened
  Prepared prepared_;
  PlanRequest whole_;  // the run with as many learners as the segment has
  EventQueue& observer_;
  Monitor monitor_;
  std::unique_ptr<LearnerSearch> search_;  // if the number of learners is to be found
  struct Made {
    std::shared_ptr<DeviceCache> cache;  // data on devices, for all segments
    int64_t segments = 0;                // made so far
    std::optional<LeftState> left;       // of the segment before, while the next one is made
  } made_;
  std::unique_ptr<Segment> segment_;
  struct Others {
    RanksOfRun ranks;
    bool take_back = false;  // some have come back, and the segment rests to take them in
    bool too_late = false;   // what is left to train is too little for all
    bool came_back = false;  // this one has come back, while the others train
  } others_;
  RunTrace trace_;
  std::optional<DivergencePolicy> divergence_;
  std::optional<Checkpoints> checkpoints_;
  struct Ended {
    bool complete = false;          // nothing is left to train
    std::optional<RunEnd> stopped;  // the run was brought to rest before its end
  } ended_;
};

}  // namespace arbalest
