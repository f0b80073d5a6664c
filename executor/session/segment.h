// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stretch of a run under one plan: the plan bound to devices, state put in place, host tasks, the scheduler. A run is
// one segment, or several if the number of learners changes.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "executor/plan/strategy.h"
#include "executor/run/binding.h"
#include "executor/run/data_faults.h"
#include "executor/run/host_tasks.h"
#include "executor/run/scheduler.h"
#include "executor/run/step_profile.h"
#include "executor/run/task_error.h"
#include "executor/session/cursor.h"
#include "executor/session/initial_values.h"
#include "executor/session/monitor.h"
#include "executor/session/run_state.h"
#include "executor/session/session.h"
#include "executor/session/validation_reader.h"
#include "ops/optim/train.h"

namespace arbalest {

// The complete state of a segment that stands still between two iterations. Under the same plan, the segment goes on
// from it as if it had never stopped.
struct SegmentSnapshot {
  Cursor from;                                            // where the segment begins
  int32_t learners = 1;                                   // per device
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

// Initial values of the learners' memory before a run's first segment. They may be drawn while the segment is made.
InitialValues initial_values(const Prepared& prepared, const SessionOptions& options,
                             const WeightsFile* file = nullptr);

class Segment {
 public:
  // `prepared` has the request for this segment: learners, rounds and iterations from `from` on.
  Segment(const Prepared& prepared, const SessionOptions& options, const Cursor& from, Monitor& monitor,
          const std::shared_ptr<DeviceCache>& cache = make_device_cache());
  ~Segment();

  const Plan& plan() const { return plan_; }
  int64_t learners() const { return learners_; }
  bool validates() const { return by_validation_ && plan_.clocks[size_t(by_validation_->coarse)].ticks > 0; }
  int64_t peak_bytes() const;       // on the device that needs most, workspaces included
  int64_t workspace_bytes() const;  // on the device whose kernels need most

  // Call one of these before run().
  void start_from(InitialValues values);
  void start_from(const RunState& state);
  // Throws GraphError if the plan ends before the snapshot, RunError if it cannot be a snapshot of this plan.
  void start_from(const SegmentSnapshot& snapshot);

  // Brings samples that stay on the devices there, unless an earlier segment of the run has done so. Returns false if
  // `interrupted` was set before all were there. run() does the same if nobody has called this.
  bool bring_samples(const std::atomic<bool>& interrupted);
  std::function<void(const SamplesKept&)> on_samples;  // called meanwhile

  // Runs to the end of the segment, to a validation that ends the run, or until `interrupted` is set. Reports the
  // iterations that no report has covered. `trace` may be nullptr.
  void run(const std::atomic<bool>& interrupted, TraceRecorder* trace);

  // Call after run() and state(); the state is lost. Records how long compute tasks that run in parallel with others
  // take by themselves.
  void time_alone(TraceRecorder& trace);

  // Call after run() and state(); the state is lost. Records the time of each node of a step, on GPUs, if the trace
  // cannot record it.
  void time_nodes(TraceRecorder& trace);
  // Call after run() and state(); the state is lost. Measures the time of each node of the first learner's step, and
  // the limits of the device for the least time that it could take.
  StepProfile profile() const;

  const InputReport& last_input() const { return last_input_; }  // by the last report
  InputReport input() { return scheduler_ ? input_between({}, read_so_far(iterations())) : InputReport(); }
  int64_t iterations() const { return scheduler_ ? scheduler_->iterations() : at_.iterations; }
  bool complete() const { return iterations() == plan_.clocks[0].ticks; }
  Cursor cursor() const;  // where the next segment begins
  RunPosition position() const { return position_after(iterations()); }
  RunState state() const;
  ModelState model() const;          // the model to be saved at this point
  SegmentSnapshot snapshot() const;  // at rest, or after run()

  // SchedulerOptions::rest, first_rest and rest_due, in iterations of this segment's plan.
  std::function<std::optional<int64_t>()> on_rest;
  int64_t first_rest = SchedulerOptions::kNoRest;
  std::function<bool()> rest_due;
  const Cursor& from() const { return from_; }
  int64_t rounds() const { return rounds_; }  // iterations of an epoch
  bool at_end() const;                        // true if nothing of the plan is left to run

  // If this is set, a loss that is not finite does not end the run with an error: diverged() returns the first one
  // found, and nothing more is reported. The caller then has to bring the segment to rest.
  bool outlives_divergence = false;
  std::optional<Diverged> diverged() const;
  void diverge(const Diverged& error);  // keeps the first error
  std::string cause_in_range() const;   // a cause in the data, to append to an error; "": there is none
  // The first of a snapshot's arrays that is not finite: "the weights of learner 2 on cpu:0"; "": there is none.
  // Optimiser slots are not checked.
  std::string not_finite(const SegmentSnapshot& snapshot) const;
  // Call after run(); the state is lost. Runs the last iteration again from the snapshot before it, node by node, and
  // describes where its numbers first are not finite.
  std::string first_not_finite(const SegmentSnapshot& before) const;

  // Called after each report, on a host thread.
  std::function<void(const RunPosition&)> on_report;
  // Sets SchedulerOptions::process_ends: from now on `tell` is called, on any thread, before the process ends because
  // of a read or a call for a GPU that does not return.
  void on_process_ends(std::function<void(const std::string&)> tell);
  // Ends the segment after the batches already read. For functions that are called while it runs.
  void stop() { scheduler_->stop(); }
  // Called on a host thread after each validation, if the request keeps the validated model.
  std::function<void(const Monitor::Verdict&, const ModelState&, const RunPosition&)> on_validated;

 private:
  const Loop& training() const { return prepared_.program.training(); }
  const Loop& validation() const { return *prepared_.program.find(LoopRole::Validate); }
  InitialValues initial(const Loop& loop, const Source& source, const std::vector<ValueId>& without) const;
  const std::vector<Replica>& learner_replicas() const { return plan_.handles.loops.front().replicas; }
  bool bring_split(bool validation, const std::atomic<bool>& interrupted);
  void make_host_tasks();
  std::shared_ptr<const SampleReader> reader_of(const Loop& loop);  // one for all fills of the loop
  std::function<void(int64_t)> fill_training(const Replica& replica, TaskId task);
  std::function<void(int64_t)> fill_validation(const Replica& replica, TaskId task);
  std::function<void(int64_t)> fill_recalibration(const Replica& replica, TaskId task);
  struct ReadSoFar {
    int64_t iterations = 0, late = 0;  // late: Scheduler::late_batches()
    ReadingTimes times;
  };
  ReadSoFar read_so_far(int64_t iterations);
  InputReport input_between(const ReadSoFar& from, const ReadSoFar& to) const;
  InputReport input_since_report(int64_t iterations);
  std::function<void(int64_t)> report();
  std::optional<UpdateCount> take_updates(std::vector<double>& sums) const;
  std::vector<int64_t> samples_trained(int64_t from, int64_t to) const;
  std::optional<DataFault> fault_in_samples(LookFor what, const std::vector<int64_t>& samples) const;
  std::optional<DataFault> fault_in_new_labels(int64_t from, int64_t to);
  bool report_trained(int64_t from, int64_t to, bool ends_epoch, std::vector<double> sums);
  Monitor::Verdict judge(int64_t iterations, const Measurement& measured);
  std::string diverged_learners() const;
  bool watch(const std::function<void()>& look);
  void report_rest();
  bool validates_after(int64_t tick) const;
  std::function<void(int64_t)> end_validation();
  StepScalars scalars_of(int64_t tick, int64_t learner) const;
  double epochs_seen(int64_t tick) const;
  double rate(int64_t tick) const;
  int64_t rate_drops(int64_t tick) const;
  bool rate_dropped(int64_t group) const;
  int64_t last_restart(int64_t group) const;
  int64_t updates_before(int64_t tick, int64_t learner) const;
  int64_t validations_before(int64_t tick) const;
  Cursor cursor_after(int64_t ticks) const;
  RunPosition position_after(int64_t ticks) const;
  void put_learners(const RunState& state) const;
  void put_average(const std::vector<std::byte>& average, const std::vector<std::byte>& previous,
                   int64_t averagings = 0) const;
  int64_t averagings(int64_t iterations) const;
  void put_back(const SegmentSnapshot& snapshot) const;
  std::string name_of(const Replica& learner) const;
  MovingAverage moving_average() const;
  void put_moving_average(const MovingAverage& average) const;
  SegmentSnapshot weighed(SegmentSnapshot snapshot) const;
  void put_validation(const SegmentSnapshot& snapshot) const;
  std::vector<std::byte> read(const Loop& loop, const Replica& replica, ValueId value) const;
  void put_validation_state() const;
  void add_frozen(const Loop& loop, InitialValues& content) const;
  ModelState validated_model() const;

  std::function<void(const std::string&)> process_ends_;
  const Prepared& prepared_;
  const SessionOptions& options_;
  const Cursor from_;
  PlanPosition at_;  // where it goes on, rather than from the beginning
  Monitor& monitor_;
  const int threads_;
  Plan plan_;
  std::vector<int64_t> planned_;  // by device: bytes without workspaces
  const int64_t learners_per_device_;
  const int64_t learners_;  // in all
  const int64_t rounds_;    // iterations of an epoch, from where this segment begins
  const Strategy& strategy_;
  const LearningRate schedule_;
  const double rate_scale_;
  DataOrder order_;
  std::vector<double> corrections_;                // LearnerState::correction by learner
  std::vector<int64_t> updates_;                   // LearnerState::updates by learner
  std::vector<std::byte> frozen_;                  // RunState::frozen
  const ClockRelation *by_sync_, *by_validation_;  // of plan_; nullptr if there is no such clock
  const int64_t drops_before_;                     // of the rate, by the group before the first
  std::unique_ptr<Binding> binding_;
  std::map<LoopRole, std::shared_ptr<const SampleReader>> readers_;
  Scheduler::HostFunctions host_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<TallyReader> trained_;         // what training has summed since the report before
  std::unique_ptr<ValidationReader> validated_;  // what the validation has that ends
  bool sound_labels_ = false;                    // those of the validation's split are known to be
  std::vector<bool> sound_trained_;              // by training's sample; empty: none has been looked at
  int64_t reported_ = 0;                         // iterations that have been reported
  ReadSoFar read_;                               // by the last report
  InputReport last_input_;                       // by the last report
  mutable std::mutex divergence_mutex_;
  std::optional<Diverged> diverged_;
};

}  // namespace arbalest
