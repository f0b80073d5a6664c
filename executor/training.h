#pragma once
// One run: segments, each under a plan of its own, until the epochs are over; then the model is saved.

#include <atomic>
#include <memory>

#include "executor/segment.h"

namespace arbalest {

class LearnerTuner;

class Training {
 public:
  Training(Graph graph, const SessionOptions& options, RunObserver& observer);
  ~Training();
  RunFinished run(const std::atomic<bool>& interrupted, double setup_seconds);
  double seconds() const { return monitor_ ? monitor_->seconds() : 0; }

 private:
  void start();
  void announce(double setup_seconds);
  // Runs the segment and, where learners are still to be found, those that follow.
  void run_segments(const std::atomic<bool>& interrupted, TraceRecorder* trace);
  void keep(const Monitor::Verdict& verdict, const Model& model, const RunPosition& at);
  void save(const std::string& path, const Model& model, const RunPosition& at);
  void make_segment(const Cursor& from);

  const SessionOptions& options_;
  Prepared prepared_;
  RunObserver& observer_;
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<Segment> segment_;
  Model validated_;  // of the latest validation, where it is kept
  RunPosition validated_at_;
};

}  // namespace arbalest
