#pragma once
// One run: segments, each under a plan of its own, until the epochs are over.

#include <atomic>
#include <memory>

#include "executor/session/learner_tuner.h"
#include "executor/session/segment.h"

namespace arbalest {

class Training {
 public:
  Training(Graph graph, const SessionOptions& options, RunObserver& observer);
  ~Training();
  RunFinished run(const std::atomic<bool>& interrupted, double setup_seconds);
  StepProfile profile() const { return segment_->profile(); }  // after run()
  double seconds() const { return monitor_ ? monitor_->seconds() : 0; }

 private:
  struct Snapshot {
    ModelState model;
    RunPosition at;
  };
  void check_names() const;
  void check_files() const;
  void check_rules() const;
  void start();
  void announce(double setup_seconds);
  void run_segment(const std::atomic<bool>& interrupted);
  void run_segments(const std::atomic<bool>& interrupted);
  void request_rest(int32_t learners, Cursor& from);
  void next_segment();
  void time_what_ran();
  void write_trace_of_failure() const noexcept;
  void observe(const RunPosition& at);
  void tell(const LearnerTuner::Decision& decision, const RunPosition& at);
  void keep(const Monitor::Verdict& verdict, const ModelState& model, const RunPosition& at);
  std::string why_ended() const;
  std::string schedule_note() const;
  void save_last(RunFinished& end);
  void save_somewhere(const std::string& path, const Snapshot& last, RunFinished& end);
  static void check_finite(const ModelState& model, int64_t iteration, const std::string& path);
  void save(const std::string& path, const ModelState& model, const RunPosition& at, double seconds);
  void make_segment(const Cursor& from);

  const SessionOptions& options_;
  Prepared prepared_;
  PlanRequest whole_;  // the run with as many learners as the segment has
  RunObserver& observer_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<LearnerTuner> tuner_;  // where the number of learners is to be found
  std::unique_ptr<Segment> segment_;
  bool complete_ = false;                 // nothing is left to train
  bool waits_for_input_ = false;          // by the last report that the tuner saw
  std::unique_ptr<TraceRecorder> trace_;  // of the latest segment
  const std::shared_ptr<DeviceCache> cache_ = make_device_cache();
  Snapshot validated_;      // of the latest validation, where it is kept
  std::string best_error_;  // why the latest best model could not be saved
};

}  // namespace arbalest
