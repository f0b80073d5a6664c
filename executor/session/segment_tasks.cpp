// SPDX-License-Identifier: Apache-2.0

// The host tasks of a segment: filling slots with batches, reporting, ending a validation.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "executor/run/data_faults.h"
#include "executor/run/keep_samples.h"
#include "executor/run/task_error.h"
#include "executor/session/reading.h"
#include "executor/session/segment.h"
#include "graph/op.h"

namespace arbalest {

void Segment::make_host_tasks() {
  const PlanHandles& handles = plan_.handles;
  host_.resize(plan_.tasks.size());
  for (const LoopPlan& loop : handles.loops) {
    for (const Replica& replica : loop.replicas) {
      for (const TaskId id : replica.fills) {
        std::function<void(int64_t)>& fill = host_[size_t(id)];
        switch (loop.role) {
          case LoopRole::Train: fill = fill_training(replica, id); break;
          case LoopRole::Validate: fill = fill_validation(replica, id); break;
          case LoopRole::Recalibrate: fill = fill_recalibration(replica, id); break;
        }
      }
    }
  }
  host_[size_t(handles.report)] = report();
  if (handles.validation_end == kNone) return;
  host_[size_t(handles.validation_begin)] = [](int64_t) {};
  host_[size_t(handles.validation_end)] = end_validation();
}

bool Segment::bring_samples(const std::atomic<bool>& interrupted) {
  return bring_split(false, interrupted) && bring_split(true, interrupted);
}

bool Segment::bring_split(bool validation, const std::atomic<bool>& interrupted) {
  std::vector<SamplesOnDevice> places;
  int64_t bytes = 0;
  bool filled = true;
  for (const SamplesOnDevice& place : plan_.handles.samples) {
    if (place.validation != validation) continue;
    const Arena& arena = plan_.arenas[size_t(place.arena)];
    filled = filled && prepared_.kept_arenas->at(arena.name).filled;
    bytes = arena.bytes;
    places.push_back(place);
  }
  if (filled) return true;
  const Loop& loop = validation ? this->validation() : training();
  const auto& source = validation ? prepared_.validation : prepared_.training;
  const Node& named = *prepared_.graph.find_op(validation ? "arbalest.Validate" : "arbalest.Prefetch");
  const SampleReader reader(loop, *source, options_.numerics.seed, prepared_.bad.get(), nullptr, prepared_.watch.get());
  const auto began = std::chrono::steady_clock::now();
  KeepingOptions keeping;
  keeping.threads = threads_;
  keeping.progress = [&](int64_t samples) {
    if (!on_samples) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    on_samples({string_attribute(named, "split"), samples, source->size(), bytes, seconds});
  };
  keeping.late_read = [this] { return prepared_.watch->late(); };
  keeping.process_ends = process_ends_;
  std::optional<KeptSamples> kept = keep_samples(*binding_, places, reader, source->size(), keeping, interrupted);
  if (!kept) return false;
  *(validation ? prepared_.validation_kept : prepared_.training_kept) = std::move(*kept);
  for (const SamplesOnDevice& place : places) {
    prepared_.kept_arenas->at(plan_.arenas[size_t(place.arena)].name).filled = true;
  }
  return true;
}

std::shared_ptr<const SampleReader> Segment::reader_of(const Loop& loop) {
  auto& reader = readers_[loop.role];
  if (!reader) reader = make_reader(prepared_, loop, options_.numerics.seed);
  return reader;
}

std::function<void(int64_t)> Segment::fill_training(const Replica& replica, TaskId task) {
  auto filler = std::make_shared<BatchFiller>(*binding_, plan_.tasks[size_t(task)],
                                              batch_layout(training(), prepared_.request.training_batches),
                                              reader_of(training()));
  return [this, filler, learner = replica.learner](int64_t tick) {
    const int64_t batch = from_.batch + batch_number(tick % rounds_, learner, learners_);
    const int64_t epoch = from_.epoch + tick / rounds_;
    if (filler->has_scalars()) filler->put_scalars(tick, order_, epoch, batch, scalars_of(tick, learner));
    filler->fill(tick, order_, epoch, batch);
  };
}

std::function<void(int64_t)> Segment::fill_validation(const Replica& replica, TaskId task) {
  const Loop& loop = validation();
  auto filler = std::make_shared<BatchFiller>(
      *binding_, plan_.tasks[size_t(task)], batch_layout(loop, prepared_.request.validation_batches), reader_of(loop));
  const DataOrder order(options_.numerics.seed, prepared_.validation->size(), false, prepared_.validation->block());
  const int64_t validators = validator_count(prepared_.request);
  const int64_t batches = (validation_batches(prepared_.validation->size(), loop.batch) + validators - 1) / validators;
  // Batches that are read while recalibration goes on, which tells how far it is: those that wait for their copy and
  // those that have been copied, at most.
  const bool recalibrates = prepared_.program.find(LoopRole::Recalibrate) != nullptr;
  const int64_t depth = int_attribute(*prepared_.graph.find_op("arbalest.Prefetch"), "depth");
  const int64_t ahead = recalibrates ? 2 * depth : 0;
  return [this, filler, order, batches, validators, ahead, device = replica.device](int64_t tick) {
    StepScalars scalars;
    scalars.seed = options_.numerics.seed;
    scalars.iteration = uint64_t(tick);
    const int64_t batch = tick % batches * validators + device;
    if (filler->has_scalars()) filler->put_scalars(tick, order, tick / batches, batch, scalars);
    filler->fill(tick, order, tick / batches, batch);
    if (device != 0 || !filler->has_scalars()) return;  // one part of one device tells of all
    if (tick % batches < ahead) return;
    const int64_t epoch = position_after(by_validation_->last_of(tick / batches) + 1).epoch;
    monitor_.validating(epoch, double(tick % batches + 1) / double(batches));
  };
}

// Fills recalibration's batches: the first of the epoch that follows the validation, and, if that has too few, of
// the epochs after it.
std::function<void(int64_t)> Segment::fill_recalibration(const Replica& replica, TaskId task) {
  const Loop& loop = *prepared_.program.find(LoopRole::Recalibrate);
  auto filler = std::make_shared<BatchFiller>(*binding_, plan_.tasks[size_t(task)],
                                              batch_layout(loop, prepared_.request.training_batches), reader_of(loop));
  const int64_t batches = prepared_.program.find(LoopRole::Recalibrate)->batches,
                in_epoch = prepared_.training->size() / loop.batch, validators = validator_count(prepared_.request);
  return [this, filler, batches, in_epoch, validators, device = replica.device](int64_t tick) {
    StepScalars scalars;
    scalars.seed = options_.numerics.seed;
    scalars.iteration = uint64_t(tick);
    scalars.accumulated = int32_t(tick % batches);
    const int64_t validated = by_validation_->last_of(tick / batches) / rounds_;  // epoch of this segment
    const int64_t batch = tick % batches * validators + device;
    const int64_t epoch = from_.epoch + validated + 1 + batch / in_epoch;
    if (filler->has_scalars()) filler->put_scalars(tick, order_, epoch, batch % in_epoch, scalars);
    filler->fill(tick, order_, epoch, batch % in_epoch);
    if (device != 0 || !filler->has_scalars()) return;  // as with validation's
    monitor_.validating(position_after(by_validation_->last_of(tick / batches) + 1).epoch,
                        double(tick % batches + 1) / double(batches), true);
  };
}

std::function<void(int64_t)> Segment::report() {
  trained_ = std::make_unique<TallyReader>(*binding_, plan_.handles.loops.front(),
                                           training().sums + (prepared_.program.skips ? 2 : 0));
  return [this, relation = *plan_.relation(plan_.handles.by_report)](int64_t tick) {
    const int64_t last = relation.last_of(tick);
    const bool ends_epoch = (last + 1) % rounds_ == 0;
    const int64_t before = std::exchange(reported_, last + 1);
    const bool finite = report_trained(before, last + 1, ends_epoch, trained_->advance(tick));
    if (finite && on_report) on_report(position_after(last + 1));
  };
}

// Removes the counts of updates, which are the last two sums, and returns them; nothing if the program skips no
// updates.
std::optional<UpdateCount> Segment::take_updates(std::vector<double>& sums) const {
  if (!prepared_.program.skips) return std::nullopt;
  const UpdateCount updates{learners_, std::llround(sums[sums.size() - 2]), std::llround(sums.back())};
  sums.resize(sums.size() - 2);
  return updates;
}

// The samples of iterations `from` to `to`, exclusive, by the iterations' order of data: of two epochs at most.
std::vector<int64_t> Segment::samples_trained(int64_t from, int64_t to) const {
  std::vector<int64_t> samples, batch(size_t(training().batch));
  for (int64_t tick = std::max(from, to - 2 * rounds_); tick < to; ++tick) {
    for (int64_t learner = 0; learner < learners_; ++learner) {
      const int64_t number = from_.batch + batch_number(tick % rounds_, learner, learners_);
      order_.batch(uint64_t(from_.epoch + tick / rounds_), number, batch);
      samples.insert(samples.end(), batch.begin(), batch.end());
    }
  }
  std::sort(samples.begin(), samples.end());
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());
  return samples;
}

std::optional<DataFault> Segment::fault_in_samples(LookFor what, const std::vector<int64_t>& samples) const {
  if (samples.empty()) return std::nullopt;
  const std::string split = string_attribute(*prepared_.graph.find_op("arbalest.Prefetch"), "split");
  return fault_in_data(training(), *prepared_.training, split, what, samples);
}

// Names numbers of the data that are probably why training fails.
std::string Segment::cause_in_range() const {
  const std::string split = string_attribute(*prepared_.graph.find_op("arbalest.Prefetch"), "split");
  const std::string cause = unscaled_numbers(prepared_.graph, *prepared_.training, split);
  return cause.empty() ? "" : "; the probable cause: " + cause;
}

// Looks at each sample once, however many reports tell of skipped updates: its label stays the same.
std::optional<DataFault> Segment::fault_in_new_labels(int64_t from, int64_t to) {
  sound_trained_.resize(size_t(prepared_.training->size()), false);
  std::vector<int64_t> samples = samples_trained(from, to);
  std::erase_if(samples, [&](int64_t sample) { return sound_trained_[size_t(sample)]; });
  std::optional<DataFault> fault = fault_in_samples(LookFor::Labels, samples);
  if (fault) return fault;
  for (const int64_t sample : samples) sound_trained_[size_t(sample)] = true;
  return std::nullopt;
}

// Reports of training up to iteration `to`. If the samples are why the loss is not finite, the error says so, and not
// that the rate is. If labels are, or are why updates were skipped, nothing helps, and the run ends.
bool Segment::report_trained(int64_t from, int64_t to, bool ends_epoch, std::vector<double> sums) {
  const std::optional<UpdateCount> updates = take_updates(sums);
  const RunPosition at = position_after(to);
  const auto fail_for = [&](const DataFault& fault, const std::string& what) {
    const std::string text = fmt::format("{} iteration {}: {}", what, at.iteration, fault.text);
    if (fault.of_label) throw TaskError(text, at.iteration);
    throw Diverged(text, at.iteration, Diverged::Of::Training);
  };
  return watch([&] {
    try {
      monitor_.report(at, ends_epoch, ends_epoch && validates_after(to - 1), rate(to - 1), sums, updates,
                      diverged_learners(), input_since_report(to));
    } catch (const Diverged& error) {
      if (const auto fault = fault_in_samples(LookFor::LabelsAndNumbers, samples_trained(from, to))) {
        fail_for(*fault, updates ? fmt::format("the last {} updates have been skipped up to", Monitor::kMostSkipped)
                                 : "the loss is no longer finite after");
      }
      throw Diverged(error.what() + cause_in_range(), error.iteration, error.of);
    }
    if (!updates || updates->skipped == 0) return;
    if (const auto fault = fault_in_new_labels(from, to)) fail_for(*fault, "updates have been skipped up to");
  });
}

// Judges the validation after so many iterations. Errors are as those of training; metrics other than the loss may be
// nan for good reasons.
Monitor::Verdict Segment::judge(int64_t iterations, const Measurement& measured) {
  const RunPosition at = position_after(iterations);
  const std::string split = string_attribute(*prepared_.graph.find_op("arbalest.Validate"), "split");
  const auto look_for = [&](LookFor what) { return fault_in_data(validation(), *prepared_.validation, split, what); };
  const auto text = [&](const DataFault& fault) {
    return fmt::format("the validation after iteration {} (epoch {}) is not finite: {}", at.iteration, at.epoch,
                       fault.text);
  };
  Monitor::Verdict verdict;
  try {
    verdict = monitor_.validated(at, measured);
  } catch (const Diverged& error) {
    auto fault = look_for(LookFor::LabelsAndNumbers);
    // Samples that were trained on may have spoilt the weights without any report of it so far.
    if (!fault) fault = fault_in_samples(LookFor::LabelsAndNumbers, samples_trained(0, iterations));
    if (fault && fault->of_label) throw TaskError(text(*fault), at.iteration);
    if (fault) throw Diverged(text(*fault), error.iteration, error.of);
    throw Diverged(error.what() + cause_in_range(), error.iteration, error.of);
  }
  const bool undefined =
      std::any_of(measured.values.begin(), measured.values.end(), [](double value) { return std::isnan(value); });
  if (!undefined || sound_labels_) return verdict;
  if (const auto fault = look_for(LookFor::Labels)) throw TaskError(text(*fault), at.iteration);
  sound_labels_ = true;
  return verdict;
}

std::optional<Diverged> Segment::diverged() const {
  const std::scoped_lock lock(divergence_mutex_);
  return diverged_;
}

// Whether losses are still finite, which `look` throws if they are not.
bool Segment::watch(const std::function<void()>& look) {
  if (!outlives_divergence) {
    look();
    return true;
  }
  if (diverged()) return false;  // what runs until the segment rests counts no more
  try {
    look();
    return true;
  } catch (const Diverged& error) {
    diverge(error);
    return false;
  }
}

void Segment::diverge(const Diverged& error) {
  const std::scoped_lock lock(divergence_mutex_);
  if (!diverged_) diverged_ = error;
}

std::string Segment::name_of(const Replica& learner) const {
  return fmt::format("learner {} on {}", learner.learner, to_string(plan_.devices[size_t(learner.device)]));
}

InputReport Segment::input_between(const ReadSoFar& from, const ReadSoFar& to) const {
  constexpr int64_t kFewest = 4;  // batches of a learner that tell whether training waits, if it has just begun
  InputReport report;
  // The first batches cannot but be late and do not count; some of iterations to come may be counted already.
  const int64_t first = from.iterations == at_.iterations ? learners_ : 0;
  const int64_t late = to.late - from.late - first;
  const int64_t batches = (to.iterations - from.iterations) * learners_ - first;
  const int64_t needed = first > 0 ? kFewest * learners_ : 1;
  report.late = batches >= needed ? std::clamp(double(late) / double(batches), 0.0, 1.0) : 0;
  const double samples = std::max(1.0, double(to.times.samples - from.times.samples)) * 1e-6;
  report.read = (to.times.read - from.times.read) / samples;
  report.decode = (to.times.decode - from.times.decode) / samples;
  report.scale = (to.times.scale - from.times.scale) / samples;
  return report;
}

Segment::ReadSoFar Segment::read_so_far(int64_t iterations) {
  return {iterations, scheduler_->late_batches(), reader_of(training())->times()};
}

InputReport Segment::input_since_report(int64_t iterations) {
  const ReadSoFar before = std::exchange(read_, read_so_far(iterations));
  return last_input_ = input_between(before, read_);
}

// If the run ends within a group of iterations, reports the iterations of that group, and checks their loss.
void Segment::report_rest() {
  const int64_t done = iterations();
  if (done <= reported_) return;
  const int64_t before = std::exchange(reported_, done);
  report_trained(before, done, false, trained_->advance_to_end());
}

// The learners whose loss was not finite when it was read last; "" if there is one learner only.
std::string Segment::diverged_learners() const {
  if (learners_ == 1) return "";
  constexpr size_t kMostTold = 8;
  const std::vector<size_t>& which = trained_->not_finite();
  std::string told;
  for (size_t i = 0; i < std::min(which.size(), kMostTold); ++i) {
    told += (told.empty() ? "" : ", ") + name_of(learner_replicas()[which[i]]);
  }
  return told + (which.size() > kMostTold ? fmt::format(" and {} more", which.size() - kMostTold) : "");
}

// Whether the weights after this iteration are validated.
bool Segment::validates_after(int64_t tick) const {
  if (!validates()) return false;
  const int64_t validation = by_validation_->coarse_of(tick);
  return by_validation_->last_of(validation) == tick && validation < plan_.clocks[size_t(by_validation_->coarse)].ticks;
}

ModelState Segment::validated_model() const {
  const auto kept = [&](BufferId buffer) {
    if (buffer == kNone) return std::vector<std::byte>();
    const std::byte* from = binding_->address(buffer, 0);
    return std::vector<std::byte>(from, from + plan_.buffers[size_t(buffer)].bytes);
  };
  return {kept(plan_.handles.kept_weights), kept(plan_.handles.kept_statistics), frozen_};
}

std::function<void(int64_t)> Segment::end_validation() {
  validated_ = std::make_unique<ValidationReader>(*binding_, validation(), *plan_.handles.find(LoopRole::Validate),
                                                  prepared_.validation->size(), reader_of(validation())->left_out());
  return [this, relation = *by_validation_, over = false](int64_t tick) mutable {
    if (over) return;  // what is validated until the stop takes hold counts no more
    const RunPosition at = position_after(relation.last_of(tick) + 1);
    Monitor::Verdict verdict;
    if (!watch([&] { verdict = judge(relation.last_of(tick) + 1, validated_->read(tick)); })) return;
    if (on_validated) on_validated(verdict, validated_model(), at);
    over = verdict.stop;
    if (over) scheduler_->stop();
  };
}

}  // namespace arbalest
