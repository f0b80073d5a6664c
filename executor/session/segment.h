#pragma once
// A stretch of a run under one plan: the plan bound to devices, state put in place, host tasks, the scheduler. A run is
// one segment, or several where the number of learners changes.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

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

// All that a segment holds where it stands still between two iterations. Under the same plan it goes on from there as
// if it had not stood still.
struct SegmentSnapshot {
  Cursor from;                                            // where the segment begins
  int32_t learners = 1;                                   // per device
  PlanPosition at;                                        // in its plan
  RunState state;                                         // corrections and updates as state() has them
  std::vector<double> corrections;                        // by learner: those that the segment began with
  std::vector<int64_t> updates;                           // likewise
  std::vector<std::vector<std::vector<std::byte>>> kept;  // by learner: the values that kept_values() names
  int64_t reported = 0;                                   // iterations that reports have told of
  std::vector<double> trained, validated;                 // what sums were when they were last looked at
  std::vector<std::vector<double>> tallies;               // of each device that validates, when a validation last ended
  bool validating = false;                                // one is under way, of the weights and statistics here:
  ModelState model;
};

// What a learner's memory keeps from iteration to iteration besides weights, slots and statistics: sums of gradients
// that make no update yet, tallies.
std::vector<ValueId> kept_values(const Loop& training);
// How many of a kept value's last bytes are what batches weigh, which checkpoints of before lack.
int64_t weight_bytes_of(const Loop& training, ValueId kept);

// Of the learners' memory, before a run's first segment: it may be drawn while the segment is made.
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
  int64_t peak_bytes() const;       // of the device that needs most, workspaces included
  int64_t workspace_bytes() const;  // of the device whose kernels need most

  // One of these before run().
  void start_from(InitialValues values);
  void start_from(const RunState& state);
  // Throws GraphError where the plan ends before the snapshot, RunError where it cannot be one of this plan.
  void start_from(const SegmentSnapshot& snapshot);

  // Brings samples that stay on the devices there, unless an earlier segment of the run has: false where `interrupted`
  // was set before all were there. run() does so too, if nobody has.
  bool bring_samples(const std::atomic<bool>& interrupted);
  std::function<void(const SamplesKept&)> on_samples;  // is told meanwhile

  // Runs to the end of the segment, to what validation decides, or to `interrupted`, and reports what no report has
  // told of. `trace` may be nullptr.
  void run(const std::atomic<bool>& interrupted, TraceRecorder* trace);

  // After run() and state(), which is lost: how long compute tasks take that others run beside, each by itself.
  void time_alone(TraceRecorder& trace);

  // Likewise: what each node of a step takes, where the trace could not record it.
  void time_nodes(TraceRecorder& trace);
  // Likewise: what each node of the first learner's step takes, and what it could take at the least.
  StepProfile profile() const;

  const InputReport& last_input() const { return last_input_; }  // by the last report
  InputReport input() { return scheduler_ ? input_between({}, read_so_far(iterations())) : InputReport(); }
  int64_t iterations() const { return scheduler_ ? scheduler_->iterations() : at_.iterations; }
  bool complete() const { return iterations() == plan_.clocks[0].ticks; }
  Cursor cursor() const;  // where the next segment begins
  RunPosition position() const { return position_after(iterations()); }
  RunState state() const;
  ModelState model() const;          // what would be saved by now
  SegmentSnapshot snapshot() const;  // at rest, or after run()

  // Where it may rest: SchedulerOptions::rest, first_rest and rest_due, of iterations of this segment's plan.
  std::function<std::optional<int64_t>()> on_rest;
  int64_t first_rest = SchedulerOptions::kNoRest;
  std::function<bool()> rest_due;
  const Cursor& from() const { return from_; }
  int64_t rounds() const { return rounds_; }  // iterations of an epoch
  bool at_end() const;                        // nothing of it is left to run

  // A loss that is not finite does not end the run with an error: diverged() says what was found, first of all, and
  // nothing more is reported. For whoever lets the segment rest then.
  bool outlives_divergence = false;
  std::optional<Diverged> diverged() const;
  void diverge(const Diverged& error);  // the first stays
  std::string cause_in_range() const;   // in the data, to be said behind an error; "": there is none
  // The first of a snapshot's arrays that is not finite: "the weights of learner 2 on cpu:0"; "": there is none. Slots
  // do not count.
  std::string not_finite(const SegmentSnapshot& snapshot) const;
  // After run(), whose state is lost: the last iteration once more from the snapshot before it, node by node. Says
  // where its numbers go wrong.
  std::string first_not_finite(const SegmentSnapshot& before) const;

  // After each report, on a host thread.
  std::function<void(const RunPosition&)> on_report;
  // `tell` is called, on any thread from now on, before a read or a call for a GPU that does not end ends the process:
  // SchedulerOptions::process_ends.
  void on_process_ends(std::function<void(const std::string&)> tell);
  // Ends the segment after the batches already read. For what is called while it runs.
  void stop() { scheduler_->stop(); }
  // Where the request keeps what is validated: called on a host thread after each validation.
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
  bool restarts(int64_t group) const;
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
  const LearningRate schedule_;
  const double rate_scale_;
  DataOrder order_;
  std::vector<double> corrections_;                // LearnerState::correction by learner
  std::vector<int64_t> updates_;                   // LearnerState::updates by learner
  std::vector<std::byte> frozen_;                  // RunState::frozen
  const ClockRelation *by_sync_, *by_validation_;  // of plan_; nullptr where there is no such clock
  const int64_t drops_before_;                     // of the rate, by the group before the first
  std::unique_ptr<Binding> binding_;
  std::map<LoopRole, std::shared_ptr<const SampleReader>> readers_;
  Scheduler::HostFunctions host_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<TallyReader> trained_;         // what training has summed since the report before
  std::unique_ptr<ValidationReader> validated_;  // what the validation has that ends
  bool sound_labels_ = false;                    // those of the validation's split are known to be
  std::vector<bool> sound_trained_;              // by training's sample; empty: none has been looked at
  int64_t reported_ = 0;                         // iterations that reports have told of
  ReadSoFar read_;                               // by the last report
  InputReport last_input_;                       // likewise
  mutable std::mutex divergence_mutex_;
  std::optional<Diverged> diverged_;
};

}  // namespace arbalest
