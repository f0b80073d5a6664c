#pragma once
// A stretch of a run under one plan: the plan bound to devices, state put in place, host tasks, the scheduler. A run is
// one segment, or several where the number of learners changes.

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "executor/binding.h"
#include "executor/cursor.h"
#include "executor/host_tasks.h"
#include "executor/model_state.h"
#include "executor/monitor.h"
#include "executor/replica.h"
#include "executor/scheduler.h"
#include "executor/session.h"
#include "ops/train.h"

namespace arbalest {

class Segment {
 public:
  // `prepared` has the request for this segment: learners, rounds and iterations from `from` on.
  Segment(const Prepared& prepared, const SessionOptions& options, const Cursor& from, Monitor& monitor,
          const std::shared_ptr<DeviceCache>& cache = make_device_cache());
  ~Segment();

  const Plan& plan() const { return plan_; }
  int64_t learners() const { return learners_; }
  bool validates() const { return by_validation_ && plan_.clocks[size_t(by_validation_->coarse)].ticks > 0; }
  int64_t peak_bytes() const;  // of the device that needs most, workspaces included

  // One of these before run().
  void start_from_initializers(const TensorFile* file, const std::string& path);
  void start_from(const ModelState& state);

  // Runs to the end of the segment, to what validation decides, or to `interrupted`. `trace` may be nullptr.
  void run(const std::atomic<bool>& interrupted, TraceRecorder* trace);

  // After run() and state(), which is lost: how long compute tasks take that others run beside, each by itself.
  void time_alone(TraceRecorder& trace);

  int64_t iterations() const { return scheduler_ ? scheduler_->iterations() : 0; }
  bool complete() const { return iterations() == plan_.clocks[0].ticks; }
  Cursor cursor() const;  // where the next segment begins
  RunPosition position() const { return position_after(iterations()); }
  ModelState state() const;
  Model model() const;  // what learners share by now

  // After each report, on a host thread.
  std::function<void(const RunPosition&)> on_report;
  // Ends the segment after the batches already read. For what is called while it runs.
  void stop() { scheduler_->stop(); }
  // Where the request keeps what is validated: called on a host thread after each validation.
  std::function<void(const Monitor::Verdict&, const Model&, const RunPosition&)> on_validated;

 private:
  const Loop& training() const { return prepared_.program.training; }
  const Loop& validation() const { return *prepared_.program.validation; }
  std::string replica_prefix(int64_t learner) const;
  ReplicaContent initial(const Loop& loop, const Source& source, const std::vector<ValueId>& without,
                         const TensorFile* file = nullptr, const std::string& path = "") const;
  int32_t device_of(int64_t learner) const { return int32_t(learner / learners_per_device_); }
  void make_host_tasks();
  std::function<void(int64_t)> fill_training(const Task& task);
  std::function<void(int64_t)> fill_validation(const Task& task);
  std::function<void(int64_t)> fill_recalibration(const Task& task);
  std::function<void(int64_t)> report();
  std::function<void(int64_t)> end_validation();
  StepScalars scalars_of(int64_t tick, int64_t learner) const;
  double epochs_seen(int64_t tick) const;
  double rate(int64_t tick) const;
  int64_t rate_drops(int64_t tick) const;
  int64_t validations_before(int64_t tick) const;
  const ClockRelation* relation_to(std::string_view coarse) const;
  std::vector<TaskId> tally_copies(std::string_view clock) const;
  Cursor cursor_after(int64_t ticks) const;
  RunPosition position_after(int64_t ticks) const;
  void put(BufferId buffer, int64_t slot, const std::vector<std::byte>& content) const;
  std::vector<std::byte> get(BufferId buffer, int64_t slot, int64_t bytes) const;
  void put_average(const std::vector<std::byte>& average, const std::vector<std::byte>& previous) const;
  void put_validation_state() const;
  Model validated_model() const;

  const Prepared& prepared_;
  const SessionOptions& options_;
  const Cursor from_;
  Monitor& monitor_;
  const int threads_;
  Plan plan_;
  const int64_t learners_per_device_;
  const int64_t learners_;  // in all
  const int64_t rounds_;    // iterations of an epoch, from where this segment begins
  const LearningRate schedule_;
  const double rate_scale_;
  DataOrder order_;
  std::vector<double> corrections_;                // ReplicaState::correction by learner
  const ClockRelation *by_sync_, *by_validation_;  // of plan_; nullptr where there is no such clock
  const int64_t drops_before_;                     // of the rate, by the group before the first
  std::unique_ptr<Binding> binding_;
  Scheduler::HostFunctions host_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace arbalest
