// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/process.h"
#include "executor/plan/plan_part.h"
#include "executor/run/bind_plan.h"
#include "executor/run/first_not_finite.h"
#include "executor/segment/whole_state.h"
#include "executor/session/shared_resources.h"
#include "executor/trace/trace_recorder.h"
#include "executor/world/agreement.h"

namespace arbalest {
namespace {

Initialisation drawn_for(const SessionOptions& options, const WeightsFile* file) {
  return {options.numerics.seed, file, thread_count(options)};
}

std::vector<int64_t> planned_by_device(const Plan& plan) {
  std::vector<int64_t> bytes;
  for (size_t d = 0; d < plan.devices.size(); ++d) bytes.push_back(planned_bytes(plan, int32_t(d)));
  return bytes;
}

// The most bytes that a bound plan takes of any process's device, beyond those of that device in `without`.
int64_t most_bytes(Ranks* ranks, const Binding& binding, const std::vector<int64_t>& without) {
  int64_t most = 0;
  for (size_t d = 0; d < without.size(); ++d) most = std::max(most, binding.peak_bytes(int32_t(d)) - without[d]);
  return largest_of(ranks, most);
}

}  // namespace

InitialValues initial_values(const Prepared& prepared, const SessionOptions& options, const WeightsFile* file) {
  return initial_values(prepared.program.training(), *prepared.training, drawn_for(options, file));
}

Segment::Segment(const Prepared& prepared, const SessionOptions& session, const Cursor& from, Monitor& monitor,
                 SegmentOptions options, const std::shared_ptr<DeviceCache>& cache)
    : prepared_(prepared),
      session_(session),
      options_(std::move(options)),
      threads_(thread_count(session)),
      plan_(part_of(make_plan(prepared.program, prepared.request), session.ranks ? session.ranks->rank() : 0)),
      planned_(planned_by_device(plan_)),
      clock_(times_of(prepared, session, plan_, from, monitor)),
      binding_(bind_plan(plan_, threads_, session.execution.device_timeout, bind_options(prepared, session), cache)),
      memory_{most_bytes(session.ranks.get(), *binding_, std::vector<int64_t>(planned_.size(), 0)),
              most_bytes(session.ranks.get(), *binding_, planned_)},
      state_(prepared, *binding_, clock_, drawn_for(session, nullptr)),
      batches_(prepared, *binding_, clock_, state_, monitor),
      reports_(prepared, *binding_, clock_, state_, batches_, monitor, options_) {
  make_host_tasks();
  if (options_.on_process_ends) binding_->calls().listen({{}, options_.on_process_ends});
}

Segment::~Segment() = default;

void Segment::start_from(const SegmentSnapshot& checkpoint) {
  const SegmentTimes& times = clock_.times();
  const LoopPlan* validation = plan_.handles.find(LoopRole::Validate);
  std::optional<SegmentSnapshot> completed;
  if (validation && checkpoint.tallies.empty() && checkpoint.at.validations == 0) {
    completed = with_validation(checkpoint, validation->everywhere, reports_.validated_sums());
  }
  const SegmentSnapshot& known = completed ? *completed : checkpoint;
  const bool older =
      known.trained.size() < reports_.trained_sums() || known.validated.size() < reports_.validated_sums();
  if (older) completed = with_weights(known, prepared_.program, times.rounds, reports_.validated_sums() > 0);
  const auto begun = [&](int64_t tick) { return times.validations ? times.validations->of(tick) : 0; };
  const PlanPosition& at = checkpoint.at;
  if (const int64_t more = at.validations - begun(at.iterations); times.validations && more == 1) {
    // The run was validated at its end, where the plan of a longer run has no validation.
    completed = without_last_validation(completed ? *completed : checkpoint);
    clock_.add_validations_before(more);
  }
  const SegmentSnapshot& snapshot = completed ? *completed : checkpoint;
  if (snapshot.at.iterations > times.iterations) {
    throw GraphError(fmt::format("the checkpoint is after iteration {}, and the run ends after {}",
                                 times.from.iteration + snapshot.at.iterations,
                                 times.from.iteration + times.iterations));
  }
  const int64_t copied = begun(std::max<int64_t>(0, snapshot.at.iterations - 1));
  const bool within = snapshot.at.iterations >= 0 && snapshot.at.validations >= copied - 1 &&
                      snapshot.at.validations >= 0 && snapshot.at.validations <= begun(snapshot.at.iterations) &&
                      snapshot.reported >= 0 && snapshot.reported <= snapshot.at.iterations;
  const auto learners = size_t(times.learners);
  const bool whole = snapshot.state.learners.size() == learners && snapshot.corrections.size() == learners &&
                     snapshot.updates.size() == learners && snapshot.kept.size() == learners &&
                     snapshot.trained.size() == reports_.trained_sums();
  if (!within || !whole) throw RunError("the checkpoint's position is not one of such a run");
  reports_.check(snapshot);
  at_ = snapshot.at;
  state_.put(snapshot);
  reports_.go_on_from(snapshot);
}

bool Segment::bring_samples(const std::stop_token& stop) {
  return batches_.bring_samples(threads_, options_, stop);
}

void Segment::make_host_tasks() {
  const PlanHandles& handles = plan_.handles;
  host_.resize(plan_.tasks.size());
  for (const LoopPlan& loop : handles.loops) {
    for (const Replica& replica : loop.replicas) {
      for (const TaskId id : replica.fills) host_[id] = batches_.fill(loop.role, replica, id);
    }
  }
  host_[handles.report] = reports_.report();
  if (handles.validation_end == kNone) return;
  host_[handles.validation_begin] = [](int64_t) {};
  host_[handles.validation_end] = reports_.end_validation();
}

void Segment::run(const std::stop_token& stop, TraceRecorder* trace, SegmentRests rests) {
  const bool brought = bring_samples(stop);
  if (largest_of(session_.ranks.get(), brought ? 0 : 1) > 0) return;
  SchedulerOptions scheduling;
  scheduling.threads = threads_;
  if (session_.shared) scheduling.shared = session_.shared->threads();
  scheduling.first_iteration = clock_.times().from.iteration;
  scheduling.trace = trace;
  scheduling.from = at_;
  scheduling.rest = std::move(rests.rest);
  scheduling.first_rest = rests.first;
  scheduling.rest_due = std::move(rests.due);
  scheduling.nvtx = session_.execution.nvtx;
  scheduling.stalled = warn_of_stall;
  scheduling.late_read = [this] { return prepared_.watch->late(); };
  scheduling.process_ends = options_.on_process_ends;
  scheduling.ranks = session_.ranks;
  scheduling.standstill_seconds = session_.execution.device_timeout;
  scheduling.host_standstill_seconds = host_patience(session_.execution);
  scheduler_ = std::make_unique<Scheduler>(*binding_, std::move(host_), scheduling);
  reports_.go_on_with(*scheduler_);
  scheduler_->run(stop);
  reports_.report_rest();
  if (trace) trace->set_reading(batches_.reader_of(prepared_.program.training())->times());
}

bool Segment::at_end() const {
  const PlanPosition at = where();
  const std::optional<IterationGroups>& validations = clock_.times().validations;
  return at.iterations == clock_.times().iterations && (!validations || at.validations == validations->complete);
}

RunState Segment::state() const {
  RunState mine = state_.read(iterations());
  return session_.ranks ? exchanged(*session_.ranks, std::move(mine)) : mine;
}

ModelState Segment::model() const {
  RunState now = state_.read(iterations());
  if (session_.ranks) now = gathered(*session_.ranks, std::move(now));
  if (session_.ranks && !session_.ranks->first()) return {};
  ModelState model = shared_model(now, prepared_.request.strategy);
  if (now.moving_average.decay > 0) model.weights = caught_up(now, model.weights).weights;
  return model;
}

SegmentSnapshot Segment::own_snapshot() const {
  SegmentSnapshot snapshot;
  snapshot.at = where();
  state_.read(snapshot);
  reports_.add_to(snapshot);
  return snapshot;
}

LeftState Segment::left() const {
  if (scheduler_) return left_state(state_, plan_, clock_, [this](TaskId task) { return scheduler_->ended(task); });
  const Dependencies before(plan_, at_);
  return left_state(state_, plan_, clock_, [&](TaskId task) { return before.ended(task); });
}

std::string Segment::not_finite(const SegmentSnapshot& own) const {
  return first_of(session_.ranks.get(), state_.not_finite(own));
}

int64_t Segment::taken_bytes() const {
  int64_t most = -1;
  for (size_t d = 0; d < plan_.devices.size(); ++d) {
    most = std::max(most, binding_->device(int32_t(d)).taken_bytes());
  }
  return most;
}

void Segment::time_alone(TraceRecorder& trace) {
  if (prepared_.request.learners == 1) return;
  Table<TaskId, int64_t> alone(plan_.tasks.size(), -1);
  for (const BoundTask& task : binding_->tasks()) {
    const Lane& lane = plan_.lanes[plan_.tasks[task.id].lane];
    if (lane.kind != Lane::Kind::Compute) continue;
    alone[task.id] = binding_->device(lane.device).time_alone(task);
  }
  trace.set_alone(std::move(alone));
}

void Segment::time_nodes(TraceRecorder& trace) {
  const int32_t device = plan_.handles.loops.front().replicas.front().device;
  if (plan_.devices[size_t(device)].kind == PlanDevice::Kind::Cpu) return;  // recorded as they ran
  trace.set_timed(arbalest::time_nodes(*binding_));
}

StepProfile Segment::profile() const {
  const bool lowered = session_.numerics.precision == Precision::Bf16;
  return profile_step(*binding_, bind_options(prepared_, session_), lowered ? DataType::Bfloat16 : DataType::Float32);
}

std::string Segment::first_not_finite(const SegmentSnapshot& before) const {
  state_.put_back(before);
  const std::optional<NotFinite> found = arbalest::first_not_finite(*binding_, before.at.iterations);
  Ranks* const ranks = session_.ranks.get();
  // The earliest part of the step counts, and of it the first learner, as in one process.
  const int64_t earliest = -largest_of(ranks, found ? -found->part : -INT64_MAX);
  const std::string text = first_of(ranks, found && found->part == earliest ? to_string(*found) : "");
  return !text.empty() ? text
                       : "all values of the step are finite when its nodes run once more, one by one: what is not is "
                         "made between learners, or not each time";
}

}  // namespace arbalest
