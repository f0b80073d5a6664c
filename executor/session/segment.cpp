// SPDX-License-Identifier: Apache-2.0
#include "executor/session/segment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/plain_message.h"
#include "executor/run/bind_plan.h"
#include "executor/trace/trace_recorder.h"
#include "ops/optim/moving_average.h"

namespace arbalest {
namespace {

double scale_of(RateScaling scaling, int64_t learners) {
  switch (scaling) {
    case RateScaling::None: break;
    case RateScaling::Linear: return double(learners);
    case RateScaling::Sqrt: return std::sqrt(double(learners));
  }
  return 1;
}

// The first fine tick of a group.
int64_t first_of(const ClockRelation& relation, int64_t group) {
  return group == 0 ? 0 : relation.last_of(group - 1) + 1;
}

}  // namespace

Segment::Segment(const Prepared& prepared, const SessionOptions& options, const Cursor& from, Monitor& monitor,
                 const std::shared_ptr<DeviceCache>& cache)
    : prepared_(prepared),
      options_(options),
      from_(from),
      monitor_(monitor),
      threads_(thread_count(options)),
      plan_(make_plan(prepared.program, prepared.request)),
      learners_per_device_(prepared.request.learners),
      learners_(int64_t(plan_.devices.size()) * learners_per_device_),
      rounds_(prepared.request.rounds),
      strategy_(strategy_named(prepared.request.strategy.name)),
      schedule_(prepared.program.train),
      rate_scale_(scale_of(options.learners.rate_scaling, learners_)),
      order_(options.numerics.seed, prepared.training->size(), true, prepared.training->block()),
      by_sync_(plan_.relation(plan_.handles.by_sync)),
      by_validation_(plan_.relation(plan_.handles.by_validation)),
      drops_before_(from.rate_drops.value_or(rate_drops(0))) {
  for (size_t d = 0; d < plan_.devices.size(); ++d) planned_.push_back(planned_bytes(plan_, int32_t(d)));
  binding_ = bind_plan(plan_, threads_, options.execution.device_timeout, bind_options(prepared, options), cache);
  make_host_tasks();
}

void Segment::on_process_ends(std::function<void(const std::string&)> tell) {
  binding_->calls().listen({{}, tell});
  process_ends_ = std::move(tell);
}

Segment::~Segment() = default;

int64_t Segment::peak_bytes() const {
  int64_t most = 0;
  for (size_t d = 0; d < plan_.devices.size(); ++d) most = std::max(most, binding_->peak_bytes(int32_t(d)));
  return most;
}

int64_t Segment::workspace_bytes() const {
  int64_t most = 0;
  for (size_t d = 0; d < planned_.size(); ++d) most = std::max(most, binding_->peak_bytes(int32_t(d)) - planned_[d]);
  return most;
}

InitialValues initial_values(const Prepared& prepared, const SessionOptions& options, const WeightsFile* file) {
  return initial_values(prepared.program.training(), *prepared.training,
                        {options.numerics.seed, file, thread_count(options)});
}

InitialValues Segment::initial(const Loop& loop, const Source& source, const std::vector<ValueId>& without) const {
  return initial_values(loop, source, {options_.numerics.seed, nullptr, threads_}, without);
}

void Segment::start_from(InitialValues content) {
  if (training().arenas.frozen != kNone) frozen_ = content.at(training().arenas.frozen);
  add_frozen(training(), content);
  corrections_.assign(size_t(learners_), 0);
  updates_.assign(size_t(learners_), 0);
  for (const Replica& replica : learner_replicas()) put_values(*binding_, replica, content);
  const auto& weights = content.at(training().arenas.weights);
  put_average(weights, weights);
  put_moving_average({0, weights});
  put_validation_state();
}

// Averaging n reads slot n mod 2 as z and the other as z_prev.
void Segment::put_average(const std::vector<std::byte>& average, const std::vector<std::byte>& previous,
                          int64_t averagings) const {
  for (const BufferId buffer : plan_.handles.averages) {
    binding_->put({buffer, 0, 0}, averagings, average);
    binding_->put({buffer, 0, 0}, averagings + 1, previous);
  }
}

void Segment::put_moving_average(const MovingAverage& average) const {
  const MovingAverageProgress progress{average.updates, average.within};
  std::vector<std::byte> bytes(sizeof progress);
  std::memcpy(bytes.data(), &progress, sizeof progress);
  for (const MovingAverageBuffers& buffers : plan_.handles.moving_averages) {
    binding_->put({buffers.weights, 0, 0}, 0, average.weights);
    binding_->put({buffers.progress, 0, 0}, 0, bytes);
  }
}

// Adds the frozen values, in the precisions that the loop reads.
void Segment::add_frozen(const Loop& loop, InitialValues& content) const {
  if (loop.arenas.frozen != kNone) content[loop.arenas.frozen] = frozen_;
  if (loop.arenas.frozen_lowered != kNone) content[loop.arenas.frozen_lowered] = lowered_content(frozen_);
}

// Puts everything in place that validation and recalibration read, except for the weights, which the snapshot makes.
void Segment::put_validation_state() const {
  const auto put = [&](LoopRole role, const Source& source) {
    const Loop& loop = *prepared_.program.find(role);
    InitialValues content = initial(loop, source, {loop.arenas.weights, loop.arenas.frozen});
    add_frozen(loop, content);
    for (const Replica& replica : plan_.handles.find(role)->replicas) put_values(*binding_, replica, content);
  };
  if (plan_.handles.find(LoopRole::Validate)) put(LoopRole::Validate, *prepared_.validation);
  if (plan_.handles.find(LoopRole::Recalibrate)) put(LoopRole::Recalibrate, *prepared_.training);
}

void Segment::put_learners(const RunState& state) const {
  const ArenaValues& arenas = training().arenas;
  std::vector<ValueId> carried = {arenas.weights, arenas.statistics, arenas.frozen};
  for (const ArenaValues::Slot& slot : arenas.slots) carried.push_back(slot.value);
  InitialValues content = initial(training(), *prepared_.training, carried);
  add_frozen(training(), content);
  for (const Replica& replica : learner_replicas()) {
    const LearnerState& learner = state.learners[size_t(replica.learner)];
    const auto set = [&](ValueId value, std::vector<std::byte> bytes) {
      if (value != kNone) content[value] = std::move(bytes);
    };
    set(arenas.weights, learner.weights);
    for (size_t k = 0; k < arenas.slots.size(); ++k) set(arenas.slots[k].value, learner.slots[k]);
    set(arenas.statistics, learner.statistics);
    if (arenas.weights_lowered != kNone) set(arenas.weights_lowered, lowered_content(learner.weights));
    put_values(*binding_, replica, content);
  }
}

void Segment::start_from(const RunState& state) {
  frozen_ = state.frozen;
  for (const Replica& replica : learner_replicas()) {
    corrections_.push_back(state.learners[size_t(replica.learner)].correction);
    updates_.push_back(state.learners[size_t(replica.learner)].updates);
  }
  put_learners(state);
  put_average(state.average, state.previous);
  put_moving_average(state.moving_average);
  put_validation_state();
}

RunState Segment::state() const {
  RunState state;
  state.frozen = frozen_;
  const ArenaValues& arenas = training().arenas;
  for (const Replica& replica : learner_replicas()) {
    LearnerState& learner = state.learners.emplace_back();
    learner.weights = read(training(), replica, arenas.weights);
    learner.statistics = read(training(), replica, arenas.statistics);
    for (const ArenaValues::Slot& slot : arenas.slots) {
      learner.slots.push_back(read(training(), replica, slot.value));
    }
    learner.updates = updates_before(iterations(), replica.learner);
  }
  if (const int64_t done = iterations(); by_sync_ && done > 0) {
    const int64_t group = by_sync_->coarse_of(done - 1);
    const bool averaged = by_sync_->last_of(group) == done - 1;
    if (!averaged) state.unaveraged = (done - first_of(*by_sync_, group)) / prepared_.program.accumulate;
  }
  state.moving_average = moving_average();
  if (plan_.handles.averages.empty()) return state;
  const BufferId average = plan_.handles.averages.front();
  const int64_t averagings = this->averagings(iterations()), bytes = plan_.buffers[size_t(average)].bytes;
  state.averaged = averagings > 0 && state.unaveraged == 0;
  state.average = binding_->get({average, 0, 0}, averagings, bytes);
  state.previous = binding_->get({average, 0, 0}, averagings + 1, bytes);
  return state;
}

// Averagings that are complete after so many iterations.
int64_t Segment::averagings(int64_t iterations) const {
  return std::min(by_sync_->coarse_of(iterations), plan_.clocks[size_t(by_sync_->coarse)].ticks);
}

std::vector<std::byte> Segment::read(const Loop& loop, const Replica& replica, ValueId value) const {
  if (value == kNone) return {};
  return binding_->get(replica.placement.of[size_t(value)], 0, loop.graph.values[size_t(value)].type.bytes());
}

MovingAverage Segment::moving_average() const {
  if (plan_.handles.moving_averages.empty()) return {};
  const MovingAverageBuffers& from = plan_.handles.moving_averages.front();
  MovingAverage average;
  average.decay = prepared_.program.ema;
  average.weights = binding_->get({from.weights, 0, 0}, 0, plan_.buffers[size_t(from.weights)].bytes);
  MovingAverageProgress progress;
  std::memcpy(&progress, binding_->get({from.progress, 0, 0}, 0, sizeof progress).data(), sizeof progress);
  average.updates = progress.updates;
  average.within = progress.within;
  return average;
}

ModelState Segment::model() const {
  const RunState now = state();
  ModelState model = shared_model(now, prepared_.request.strategy);
  if (now.moving_average.decay > 0) model.weights = caught_up(now, model.weights).weights;
  return model;
}

void Segment::run(const std::atomic<bool>& interrupted, TraceRecorder* trace) {
  if (!bring_samples(interrupted)) return;
  SchedulerOptions scheduling;
  scheduling.threads = threads_;
  scheduling.first_iteration = from_.iteration;
  scheduling.trace = trace;
  scheduling.from = at_;
  scheduling.rest = on_rest;
  scheduling.first_rest = first_rest;
  scheduling.rest_due = rest_due;
  scheduling.nvtx = options_.execution.nvtx;
  scheduling.stalled = [](const std::string& report) {
    warn(fmt::format("nothing has completed for a while; waiting:\n{}", report));
  };
  scheduling.late_read = [this] { return prepared_.watch->late(); };
  scheduling.process_ends = process_ends_;
  scheduler_ = std::make_unique<Scheduler>(*binding_, std::move(host_), scheduling);
  scheduler_->run(interrupted);
  report_rest();
  if (trace) trace->set_reading(reader_of(training())->times());
}

void Segment::time_alone(TraceRecorder& trace) {
  if (learners_per_device_ == 1) return;
  std::vector<int64_t> alone(plan_.tasks.size(), -1);
  for (const BoundTask& task : binding_->tasks()) {
    const Lane& lane = plan_.lanes[size_t(plan_.tasks[size_t(task.id)].lane)];
    if (lane.kind != Lane::Kind::Compute) continue;
    alone[size_t(task.id)] = binding_->device(lane.device).time_alone(task);
  }
  trace.set_alone(std::move(alone));
}

void Segment::time_nodes(TraceRecorder& trace) {
  const int32_t device = learner_replicas().front().device;
  if (plan_.devices[size_t(device)].kind == PlanDevice::Kind::Cpu) return;  // recorded as they ran
  trace.set_timed(arbalest::time_nodes(*binding_));
}

StepProfile Segment::profile() const {
  const bool lowered = options_.numerics.precision == Precision::Bf16;
  return profile_step(*binding_, bind_options(prepared_, options_), lowered ? DataType::Bfloat16 : DataType::Float32);
}

// Samples seen ÷ samples of the split, before iteration `tick`.
double Segment::epochs_seen(int64_t tick) const {
  const int64_t batches = from_.batch + tick % rounds_ * learners_;
  return arbalest::epochs_seen(from_.epoch + tick / rounds_, batches, training().batch, prepared_.training->size());
}

// Validations that the rate of iteration `tick` follows: all that were made before, but the latest may still run.
int64_t Segment::validations_before(int64_t tick) const {
  return from_.validations + (by_validation_ ? by_validation_->coarse_of(tick) : 0) - 1;
}

double Segment::rate(int64_t tick) const {
  return schedule_.rate(epochs_seen(tick), prepared_.total_epochs) * rate_scale_ *
         monitor_.rate_factor(validations_before(tick));
}

// Drops of the rate in steps, before iteration `tick`: if their number grows, averaging starts again.
int64_t Segment::rate_drops(int64_t tick) const {
  return schedule_.drops(epochs_seen(tick)) + monitor_.rate_drops(validations_before(tick));
}

// Whether the rate has dropped in a step since the group before.
bool Segment::rate_dropped(int64_t group) const {
  const int64_t before = group > 0 ? rate_drops(first_of(*by_sync_, group - 1)) : drops_before_;
  return rate_drops(first_of(*by_sync_, group)) > before;
}

// The last group up to `group` that restarts, since the rate has dropped; −1 where there is none. Drops only grow in
// number.
int64_t Segment::last_restart(int64_t group) const {
  const int64_t drops = rate_drops(first_of(*by_sync_, group));
  if (drops == drops_before_) return -1;
  int64_t low = 0, high = group;  // the first group of as many drops
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rate_drops(first_of(*by_sync_, middle)) == drops) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Updates before iteration `tick` that the optimiser's slots of a learner have seen since they were zeros.
int64_t Segment::updates_before(int64_t tick, int64_t learner) const {
  const int64_t accumulate = prepared_.program.accumulate, updates = tick / accumulate;
  if (strategy_.facts().corrects && updates > 0) {
    const int64_t restarted = last_restart(by_sync_->coarse_of(updates * accumulate - 1));
    // The first update of that group left zeros.
    if (restarted >= 0) return updates - first_of(*by_sync_, restarted) / accumulate - 1;
  }
  return updates_[size_t(learner)] + updates;
}

StepScalars Segment::scalars_of(int64_t tick, int64_t learner) const {
  const int64_t accumulate = prepared_.program.accumulate, round = tick % rounds_;
  StepScalars scalars;
  scalars.seed = options_.numerics.seed;
  scalars.iteration = uint64_t(from_.iteration + tick);
  scalars.learning_rate = float(rate(tick));
  scalars.accumulated = int32_t(round % accumulate);
  scalars.update = round % accumulate == accumulate - 1;
  scalars.updates = int32_t(updates_before(tick, learner));
  const ClockRelation* sync = by_sync_;
  if (!strategy_.facts().corrects || !scalars.update) return scalars;
  // The first update of a group follows the averaging of the group before.
  const int64_t group = sync->coarse_of(tick), begin = first_of(*sync, group);
  if (tick != begin + accumulate - 1) return scalars;
  strategy_.begin_group({group, rate_dropped(group), corrections_[size_t(learner)]}, prepared_.request.strategy,
                        scalars);
  if (scalars.restart != 0 && training().arenas.averaged == kNone) {
    throw std::logic_error("averaging starts again, and the program was made for a rate without steps");
  }
  return scalars;
}

// Batches that were accumulated and not yet used for an update are to be read again.
Cursor Segment::cursor() const {
  const int64_t ticks = iterations();
  Cursor cursor = cursor_after(ticks - ticks % rounds_ % prepared_.program.accumulate);
  const int64_t latest = by_sync_ && ticks > 0 ? by_sync_->coarse_of(ticks - 1) : 0;
  cursor.rate_drops = by_sync_ && ticks > 0 ? rate_drops(first_of(*by_sync_, latest)) : drops_before_;
  return cursor;
}

Cursor Segment::cursor_after(int64_t ticks) const {
  Cursor cursor = from_;
  cursor.iteration += ticks;
  cursor.images += ticks * learners_ * training().batch;
  cursor.epoch += ticks / rounds_;
  cursor.batch = (ticks < rounds_ ? from_.batch : 0) + ticks % rounds_ * learners_;
  if (by_validation_ && ticks > 0) {
    const int64_t latest = by_validation_->coarse_of(ticks - 1);
    cursor.validations += latest + (by_validation_->last_of(latest) == ticks - 1);
  }
  return cursor;
}

RunPosition Segment::position_after(int64_t ticks) const {
  const Cursor cursor = cursor_after(ticks);
  const int64_t ended = (ticks + rounds_ - 1) / rounds_;
  // The samples that an epoch leaves out count as seen with its last iteration.
  const double epochs = ticks % rounds_ == 0 && ticks > 0 ? double(from_.epoch + ended) : epochs_seen(ticks);
  return {from_.epoch + ended, cursor.iteration, cursor.images, epochs};
}

}  // namespace arbalest
