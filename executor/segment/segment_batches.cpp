// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment_batches.h"

#include <chrono>
#include <optional>
#include <utility>

#include "executor/run/host_tasks.h"
#include "executor/session/reading.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {

SegmentBatches::SegmentBatches(const Prepared& prepared, const Binding& binding, const SegmentClock& clock,
                               const SegmentState& state, Monitor& monitor)
    : prepared_(prepared),
      binding_(binding),
      clock_(clock),
      state_(state),
      monitor_(monitor),
      order_(clock.times().seed, prepared.training->size(), true, prepared.training->block()) {}

bool SegmentBatches::bring_samples(int threads, const SegmentOptions& options, const std::stop_token& stop) {
  return bring_split(false, threads, options, stop) && bring_split(true, threads, options, stop);
}

bool SegmentBatches::bring_split(bool validation, int threads, const SegmentOptions& options,
                                 const std::stop_token& stop) {
  const Plan& plan = binding_.plan();
  std::vector<SamplesOnDevice> places;
  int64_t bytes = 0;
  bool filled = true;
  for (const SamplesOnDevice& place : plan.handles.samples) {
    if (place.validation != validation) continue;
    const Arena& arena = plan.arenas[place.arena];
    filled = filled && prepared_.stores.kept_arenas->at(arena.name).filled;
    bytes = arena.bytes;
    places.push_back(place);
  }
  if (filled) return true;
  const Loop& loop = loop_of(validation ? LoopRole::Validate : LoopRole::Train);
  const auto& source = validation ? prepared_.validation : prepared_.training;
  const Node& named = *prepared_.graph.find_op(validation ? op::Validate : op::Prefetch);
  const SampleReader reader(loop, *source, clock_.times().seed, prepared_.bad.get(), nullptr, prepared_.watch.get());
  const auto began = std::chrono::steady_clock::now();
  KeepingOptions keeping;
  keeping.threads = threads;
  keeping.progress = [&](int64_t samples) {
    if (!options.on_samples) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    options.on_samples({string_attribute(named, "split"), samples, source->size(), bytes, seconds});
  };
  keeping.late_read = [this] { return prepared_.watch->late(); };
  keeping.process_ends = options.on_process_ends;
  std::optional<KeptSamples> kept = keep_samples(binding_, places, reader, source->size(), keeping, stop);
  if (!kept) return false;
  *(validation ? prepared_.stores.validation_kept : prepared_.stores.training_kept) = std::move(*kept);
  for (const SamplesOnDevice& place : places) {
    prepared_.stores.kept_arenas->at(plan.arenas[place.arena].name).filled = true;
  }
  return true;
}

std::shared_ptr<const SampleReader> SegmentBatches::reader_of(const Loop& loop) {
  auto& reader = readers_[loop.role];
  if (!reader) reader = make_reader(prepared_, loop, clock_.times().seed);
  return reader;
}

std::function<void(int64_t)> SegmentBatches::fill(LoopRole role, const Replica& replica, TaskId task) {
  const Loop& loop = loop_of(role);
  const PlanRequest& request = prepared_.request;
  const BatchOrigin origin = role == LoopRole::Validate ? request.validation_batches : request.training_batches;
  const auto filler =
      std::make_shared<BatchFiller>(binding_, binding_.plan().tasks[task], batch_layout(loop, origin), reader_of(loop));
  switch (role) {
    case LoopRole::Train: return fill_training(filler, replica.learner);
    case LoopRole::Validate: return fill_validation(filler, replica.place);
    case LoopRole::Recalibrate: return fill_recalibration(filler, replica.place);
  }
  return {};
}

std::function<void(int64_t)> SegmentBatches::fill_training(const Filler& filler, int64_t learner) const {
  return [this, filler, learner](int64_t tick) {
    const int64_t epoch = clock_.epoch_of(tick), batch = clock_.batch_of(tick, learner);
    if (filler->has_scalars()) {
      filler->put_scalars(tick, order_, epoch, batch, clock_.scalars(tick, state_.start_of(learner)));
    }
    filler->fill(tick, order_, epoch, batch);
  };
}

// Those of a batch that no learner trains with.
StepScalars SegmentBatches::scalars_of(int64_t tick) const {
  StepScalars scalars;
  scalars.seed = clock_.times().seed;
  scalars.iteration = uint64_t(tick);
  return scalars;
}

std::function<void(int64_t)> SegmentBatches::fill_validation(const Filler& filler, int64_t place) const {
  const Loop& loop = loop_of(LoopRole::Validate);
  const DataOrder order(clock_.times().seed, prepared_.validation->size(), false, prepared_.validation->block());
  const int64_t validators = validator_count(prepared_.request);
  const int64_t batches = (validation_batches(prepared_.validation->size(), loop.batch) + validators - 1) / validators;
  // Batches that are read while recalibration goes on, which tells how far it is: those that wait for their copy and
  // those that have been copied, at most. With a depth of 0 the first of a validation is.
  const bool recalibrates = prepared_.program.find(LoopRole::Recalibrate) != nullptr;
  const int64_t depth = int_attribute(*prepared_.graph.find_op(op::Prefetch), "depth");
  const int64_t ahead = recalibrates ? std::max<int64_t>(2 * depth, 1) : 0;
  return [this, filler, order, batches, validators, ahead, place](int64_t tick) {
    const int64_t batch = tick % batches * validators + place;
    if (filler->has_scalars()) {
      filler->put_scalars(tick, order, kDrawsApart | tick / batches, batch, scalars_of(tick));
    }
    filler->fill(tick, order, tick / batches, batch);
    if (place != 0 || !filler->has_scalars()) return;  // one part of one device tells of all
    if (tick % batches < ahead) return;
    monitor_.validating(clock_.position(clock_.validated_after(tick / batches)).epoch,
                        double(tick % batches + 1) / double(batches));
  };
}

// Fills recalibration's batches: the first of the epoch that follows the validation, and, if that has too few, of
// the epochs after it.
std::function<void(int64_t)> SegmentBatches::fill_recalibration(const Filler& filler, int64_t place) const {
  const Loop& loop = loop_of(LoopRole::Recalibrate);
  const int64_t batches = loop.batches, in_epoch = prepared_.training->size() / loop.batch,
                validators = validator_count(prepared_.request);
  return [this, filler, batches, in_epoch, validators, place](int64_t tick) {
    StepScalars scalars = scalars_of(tick);
    scalars.accumulated = int32_t(tick % batches);
    const int64_t validated = clock_.validated_after(tick / batches);
    const int64_t batch = tick % batches * validators + place;
    const int64_t epoch = kDrawsOfRecalibration | (clock_.epoch_of(validated - 1) + 1 + batch / in_epoch);
    if (filler->has_scalars()) filler->put_scalars(tick, order_, epoch, batch % in_epoch, scalars);
    filler->fill(tick, order_, epoch, batch % in_epoch);
    if (place != 0 || !filler->has_scalars()) return;  // as with validation's
    monitor_.validating(clock_.position(validated).epoch, double(tick % batches + 1) / double(batches), true);
  };
}

}  // namespace arbalest
