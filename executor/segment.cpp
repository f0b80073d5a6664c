#include "executor/segment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "executor/trace.h"
#include "executor/warn.h"

namespace arbalest {
namespace {

std::vector<std::unique_ptr<Device>> make_devices(const Plan& plan, int threads, double collective_timeout,
                                                  const std::shared_ptr<DeviceCache>& cache,
                                                  std::unique_ptr<Queues>& collectives) {
  const auto progress = make_cpu_progress(plan.tasks.size());
  const auto events = make_cuda_events(plan.tasks.size());
  const auto cpus = std::count_if(plan.devices.begin(), plan.devices.end(),
                                  [](const PlanDevice& d) { return d.kind == PlanDevice::Kind::Cpu; });
  std::vector<std::unique_ptr<Device>> devices;
  for (const PlanDevice& device : plan.devices) {
    devices.push_back(device.kind == PlanDevice::Kind::Cpu
                          ? make_cpu_device(device.index, std::max(1, threads / int(cpus)), progress)
                          : make_cuda_device(device.index, events, cache));
  }
  const bool spans = std::any_of(plan.lanes.begin(), plan.lanes.end(), [](const Lane& lane) {
    return lane.kind == Lane::Kind::Collectives && lane.device == kNone;
  });
  if (spans && cpus > 0) collectives = make_cpu_device(int(plan.devices.size()), 1, progress);
  if (spans && cpus == 0) collectives = make_cuda_collectives(plan.devices, events, collective_timeout, cache);
  return devices;
}

BindOptions bind_options(const Prepared& prepared, const SessionOptions& options) {
  BindOptions bind;
  bind.math = options.precision == Precision::Fp32 ? MathMode::Fp32 : MathMode::Tf32;
  bind.deterministic = options.deterministic;
  bind.workspace_limit = prepared.request.workspace_limit;
  return bind;
}

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
      threads_(options.threads > 0 ? options.threads : int(std::max(1u, std::thread::hardware_concurrency()))),
      plan_(make_plan(prepared.program, prepared.request)),
      learners_per_device_(prepared.request.learners),
      learners_(int64_t(plan_.devices.size()) * learners_per_device_),
      rounds_(prepared.request.rounds),
      schedule_(prepared.program.train),
      rate_scale_(scale_of(options.rate_scaling, learners_)),
      order_(options.seed, prepared.training->size(), true),
      by_sync_(relation_to("sync")),
      by_validation_(relation_to("validation")),
      drops_before_(from.rate_drops.value_or(rate_drops(0))) {
  std::unique_ptr<Queues> collectives;
  auto devices = make_devices(plan_, threads_, options.collective_timeout, cache, collectives);
  binding_ =
      std::make_unique<Binding>(plan_, std::move(devices), std::move(collectives), bind_options(prepared, options));
  make_host_tasks();
}

Segment::~Segment() = default;

int64_t Segment::peak_bytes() const {
  int64_t most = 0;
  for (size_t d = 0; d < plan_.devices.size(); ++d) most = std::max(most, binding_->peak_bytes(int32_t(d)));
  return most;
}

std::string Segment::replica_prefix(int64_t learner) const {
  return fmt::format("{}/learner {}", to_string(plan_.devices[size_t(device_of(learner))]), learner);
}

void Segment::put(BufferId buffer, int64_t slot, const std::vector<std::byte>& content) const {
  if (buffer == kNone) return;
  const Arena& arena = plan_.arenas[size_t(plan_.buffers[size_t(buffer)].arena)];
  binding_->device(arena.device).upload(binding_->address(buffer, slot), content.data(), int64_t(content.size()));
}

std::vector<std::byte> Segment::get(BufferId buffer, int64_t slot, int64_t bytes) const {
  std::vector<std::byte> content(size_t(bytes), std::byte{0});
  if (buffer == kNone) return content;
  const Arena& arena = plan_.arenas[size_t(plan_.buffers[size_t(buffer)].arena)];
  binding_->device(arena.device).download(content.data(), binding_->address(buffer, slot), bytes);
  return content;
}

ReplicaContent Segment::initial(const Loop& loop, const Source& source, const std::vector<ValueId>& without,
                                const TensorFile* file, const std::string& path) const {
  return initial_replica(loop, source, {options_.seed, file, path, threads_}, without);
}

void Segment::start_from_initializers(const TensorFile* file, const std::string& path) {
  const ReplicaContent content = initial(training(), *prepared_.training, {}, file, path);
  corrections_.assign(size_t(learners_), 0);
  for (int64_t learner = 0; learner < learners_; ++learner) put_replica(*binding_, replica_prefix(learner), content);
  const auto& weights = content.at(training().graph.values[size_t(training().arenas.weights)].name);
  put_average(weights, weights);
  put_validation_state();
}

// Averaging 0 reads slot 0 as z and slot 1 as z_prev.
void Segment::put_average(const std::vector<std::byte>& average, const std::vector<std::byte>& previous) const {
  for (const PlanDevice& device : plan_.devices) {
    const BufferId buffer = binding_->find(to_string(device) + "/average");
    put(buffer, 0, average);
    put(buffer, 1, previous);
  }
}

// All but the weights, which the snapshot makes.
void Segment::put_validation_state() const {
  const auto put = [&](const Loop& loop, const Source& source, const char* name) {
    const ReplicaContent content = initial(loop, source, {loop.arenas.weights});
    for (const PlanDevice& device : plan_.devices) {
      put_replica(*binding_, fmt::format("{}/{}", to_string(device), name), content);
    }
  };
  if (prepared_.program.validation) put(validation(), *prepared_.validation, "validation");
  if (prepared_.program.recalibration) put(*prepared_.program.recalibration, *prepared_.training, "recalibration");
}

void Segment::start_from(const ModelState& state) {
  const ArenaValues& arenas = training().arenas;
  ReplicaContent content =
      initial(training(), *prepared_.training, {arenas.weights, arenas.velocity, arenas.statistics});
  for (int64_t learner = 0; learner < learners_; ++learner) {
    const ReplicaState& replica = state.replicas[size_t(learner)];
    corrections_.push_back(replica.correction);
    const auto set = [&](ValueId value, std::vector<std::byte> bytes) {
      if (value != kNone) content[training().graph.values[size_t(value)].name] = std::move(bytes);
    };
    set(arenas.weights, replica.weights);
    set(arenas.velocity, replica.velocity);
    set(arenas.statistics, replica.statistics);
    if (arenas.weights_lowered != kNone) set(arenas.weights_lowered, lowered_content(replica.weights));
    put_replica(*binding_, replica_prefix(learner), content);
  }
  put_average(state.average, state.previous);
  put_validation_state();
}

ModelState Segment::state() const {
  ModelState state;
  const ArenaValues& arenas = training().arenas;
  const auto read = [&](int64_t learner, ValueId value) {
    if (value == kNone) return std::vector<std::byte>();
    const Value& of = training().graph.values[size_t(value)];
    return get(binding_->find(replica_prefix(learner) + "/" + of.name), 0, of.type.bytes());
  };
  for (int64_t learner = 0; learner < learners_; ++learner) {
    state.replicas.push_back(
        {read(learner, arenas.weights), read(learner, arenas.velocity), read(learner, arenas.statistics)});
  }
  if (const int64_t done = iterations(); by_sync_ && done > 0) {
    const int64_t group = by_sync_->coarse_of(done - 1);
    const bool averaged = by_sync_->last_of(group) == done - 1;
    state.updated = !averaged && done - first_of(*by_sync_, group) >= prepared_.program.accumulate;
  }
  const BufferId average = binding_->find(to_string(plan_.devices[0]) + "/average");
  if (average == kNone) return state;
  const int64_t averagings = scheduler_->ticks(plan_.buffers[size_t(average)].clock);
  const int64_t bytes = plan_.buffers[size_t(average)].bytes;
  state.averaged = averagings > 0 && !state.updated;
  state.average = get(average, averagings, bytes);
  state.previous = get(average, averagings + 1, bytes);
  return state;
}

Model Segment::model() const {
  return shared_model(state(), prepared_.request.strategy);
}

void Segment::run(const std::atomic<bool>& interrupted, TraceRecorder* trace) {
  SchedulerOptions scheduling;
  scheduling.threads = threads_;
  scheduling.first_iteration = from_.iteration;
  scheduling.trace = trace;
  scheduling.stalled = [](const std::string& report) {
    warn(fmt::format("nothing has completed for a while; waiting:\n{}", report));
  };
  scheduler_ = std::make_unique<Scheduler>(*binding_, std::move(host_), scheduling);
  scheduler_->run(interrupted);
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

// Samples seen ÷ samples of the split, before iteration `tick`.
double Segment::epochs_seen(int64_t tick) const {
  const int64_t batches = from_.batch + tick % rounds_ * learners_;
  const double within = double(batches * training().batch) / double(prepared_.training->size());
  return double(from_.epoch + tick / rounds_) + within;
}

// Validations that the rate of iteration `tick` follows: all that were made before, but the latest may still run.
int64_t Segment::validations_before(int64_t tick) const {
  return from_.validations + (by_validation_ ? by_validation_->coarse_of(tick) : 0) - 1;
}

double Segment::rate(int64_t tick) const {
  return schedule_.rate(epochs_seen(tick), prepared_.total_epochs) * rate_scale_ *
         monitor_.rate_factor(validations_before(tick));
}

// Drops of the rate in steps, before iteration `tick`: where their number grows, averaging starts again.
int64_t Segment::rate_drops(int64_t tick) const {
  return schedule_.drops(epochs_seen(tick)) + monitor_.rate_drops(validations_before(tick));
}

StepScalars Segment::scalars_of(int64_t tick, int64_t learner) const {
  const int64_t accumulate = prepared_.program.accumulate, round = tick % rounds_;
  StepScalars scalars;
  scalars.seed = options_.seed;
  scalars.iteration = uint64_t(from_.iteration + tick);
  scalars.learning_rate = float(rate(tick));
  scalars.accumulated = int32_t(round % accumulate);
  scalars.update = round % accumulate == accumulate - 1;
  const ClockRelation* sync = by_sync_;
  if (!sync || prepared_.request.strategy.kind != Strategy::Kind::Sma || !scalars.update) return scalars;
  // The first update of a group follows the averaging of the group before.
  const int64_t group = sync->coarse_of(tick), begin = first_of(*sync, group);
  if (tick != begin + accumulate - 1) return scalars;
  scalars.restart = rate_drops(begin) > (group > 0 ? rate_drops(first_of(*sync, group - 1)) : drops_before_);
  scalars.correction = float(group > 0 ? prepared_.request.strategy.alpha : corrections_[size_t(learner)]);
  return scalars;
}

const ClockRelation* Segment::relation_to(std::string_view coarse) const {
  for (const ClockRelation& relation : plan_.relations) {
    if (relation.fine == 0 && plan_.clocks[size_t(relation.coarse)].name == coarse) return &relation;
  }
  return nullptr;
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
