// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stretch of a run under one plan: the plan bound to devices, state put in place, host tasks, the scheduler. A run is
// one segment, or several if the number of learners changes.

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "executor/run/step_profile.h"
#include "executor/segment/left_state.h"
#include "executor/segment/segment_reports.h"

namespace arbalest {

// Initial values of the learners' memory before a run's first segment. They may be drawn while the segment is made.
InitialValues initial_values(const Prepared& prepared, const SessionOptions& options,
                             const WeightsFile* file = nullptr);

class Segment {
 public:
  // `prepared` has the request for this segment: learners, rounds and iterations from `from` on.
  Segment(const Prepared& prepared, const SessionOptions& session, const Cursor& from, Monitor& monitor,
          SegmentOptions options = {}, const std::shared_ptr<DeviceCache>& cache = make_device_cache());
  ~Segment();

  const Plan& plan() const { return plan_; }
  const SegmentClock& clock() const { return clock_; }
  // These are over the devices of all processes.
  int64_t peak_bytes() const { return memory_.peak; }            // where most is needed, workspaces included
  int64_t workspace_bytes() const { return memory_.workspace; }  // where kernels need most

  // Call one of these before run().
  void start_from(InitialValues values) { state_.put(std::move(values)); }
  void start_from(const RunState& state) { state_.put(state); }
  // Throws GraphError if the plan ends before the snapshot, RunError if it cannot be a snapshot of this plan.
  void start_from(const SegmentSnapshot& snapshot);

  // Brings samples that stay on the devices there, unless an earlier segment of the run has done so. Returns false if
  // a stop was requested before all were there. run() does the same if nobody has called this.
  bool bring_samples(const std::stop_token& stop);

  // Runs to the end of the segment, to a validation that ends the run, or until a stop is requested. Reports the
  // iterations that no report has covered. `trace` may be nullptr.
  void run(const std::stop_token& stop, TraceRecorder* trace, SegmentRests rests = {});

  // After run(): Device::taken_bytes() of this process's device that took most.
  int64_t taken_bytes() const;

  // Call these after run() and state(); the state is lost.
  // Records how long compute tasks that run in parallel with others take by themselves.
  void time_alone(TraceRecorder& trace);
  // Records the time of each node of a step, on GPUs, if the trace cannot record it.
  void time_nodes(TraceRecorder& trace);
  // Measures the time of each node of the first learner's step, and the limits of the device for the least time that it
  // could take.
  StepProfile profile() const;
  // Runs the last iteration again from the own snapshots before it, node by node, and describes where its numbers first
  // are not finite. Every process calls this.
  std::string first_not_finite(const SegmentSnapshot& before) const;

  int64_t iterations() const { return scheduler_ ? scheduler_->iterations() : at_.iterations; }
  bool complete() const { return iterations() == clock_.times().iterations; }
  bool at_end() const;                                           // true if nothing of the plan is left to run
  Cursor cursor() const { return clock_.cursor(iterations()); }  // where the next segment begins
  RunPosition position() const { return clock_.position(iterations()); }
  // The next two are of all processes, which call them at the same point.
  RunState state() const;
  ModelState model() const;  // the model to be saved at this point; at rank 0 alone
  // A snapshot with the learners and the sums of validations of this process alone, taken at rest or after run().
  SegmentSnapshot own_snapshot() const;
  // After a run() that failed since a process was lost: what this one has. The number of the segment is not known here.
  LeftState left() const;
  // The first array in the own snapshots of all processes that is not finite: "the weights of learner 2 on cpu:0"; "":
  // there is none. Optimiser slots are not checked. Every process calls this.
  std::string not_finite(const SegmentSnapshot& own) const;
  // Input, divergence and the causes of it.
  const SegmentReports& reports() const { return reports_; }
  void diverge(const Diverged& error) { reports_.diverge(error); }  // keeps the first error

 private:
  PlanPosition where() const { return scheduler_ ? scheduler_->position() : at_; }
  void make_host_tasks();

  const Prepared& prepared_;
  const SessionOptions& session_;
  const SegmentOptions options_;
  const int threads_;
  Plan plan_;
  const std::vector<int64_t> planned_;  // by device: bytes without workspaces
  SegmentClock clock_;
  const std::unique_ptr<Binding> binding_;
  struct Memory {
    int64_t peak, workspace;
  };
  const Memory memory_;  // of the device of any process that needs most
  SegmentState state_;
  SegmentBatches batches_;
  SegmentReports reports_;
  Scheduler::HostFunctions host_;
  PlanPosition at_;  // where it goes on, rather than from the beginning
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace arbalest
