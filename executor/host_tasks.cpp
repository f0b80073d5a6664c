#include "executor/host_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

namespace arbalest {

BatchFiller::BatchFiller(const Binding& binding, const Task& task, const Loop& loop, const Source& source,
                         const BatchLayout& layout)
    : binding_(binding),
      buffer_(binding.plan().operands[size_t(task.first_operand)].buffer),
      source_(source),
      layout_(layout),
      batch_(loop.batch),
      samples_(size_t(binding.plan().buffers[size_t(buffer_)].slots), std::vector<int64_t>(size_t(loop.batch))) {}

void BatchFiller::fill(int64_t tick, const DataOrder& order, int64_t epoch, int64_t number, StepScalars scalars) {
  std::byte* slot = binding_.address(buffer_, tick);
  std::vector<int64_t>& samples = samples_[size_t(tick) % samples_.size()];
  scalars.epoch = uint64_t(epoch);
  scalars.position = uint64_t(number * batch_);
  scalars.valid = int32_t(order.batch(uint64_t(epoch), number, samples));
  std::memcpy(slot, &scalars, sizeof scalars);
  if (layout_.images == 0) return;  // the batch stays on the device
  source_.fill(samples, reinterpret_cast<uint8_t*>(slot + layout_.images),
               reinterpret_cast<int32_t*>(slot + layout_.labels));
}

std::vector<double> TallyReader::advance(const double* tally) {
  std::vector<double> since(last_.size());
  for (size_t i = 0; i < since.size(); ++i) {
    since[i] = tally[i] - last_[i];
    last_[i] = tally[i];
  }
  return since;
}

Monitor::Monitor(const Program& program, const RunFacts& facts, RunObserver& observer)
    : program_(program), facts_(facts), observer_(observer), begun_(std::chrono::steady_clock::now()) {
  for (const Target& target : facts.targets) targets_.push_back({to_string(target), -1});
}

void Monitor::begin() {
  begun_ = std::chrono::steady_clock::now();
}

double Monitor::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

void Monitor::report(int64_t iterations_done, const std::vector<double>& sums) {
  const std::scoped_lock lock(mutex_);
  const double now = seconds();
  const double samples = double((iterations_done - last_iterations_) * facts_.learners * program_.training.batch);
  RunProgress progress;
  progress.epoch = epoch_of(iterations_done);
  progress.iteration = iterations_done;
  progress.seconds = now;
  progress.images_per_second = samples / std::max(1e-9, now - last_seconds_);
  progress.learning_rate = facts_.schedule.rate(double(iterations_done - 1) / double(facts_.rounds), facts_.epochs);
  progress.loss = sums[1] / sums[0];
  observer_.progress(progress);
  if (!std::isfinite(progress.loss)) {
    throw RunError(
        fmt::format("the loss is no longer finite after iteration {}; try a lower learning rate (now {:.3g})",
                    iterations_done, progress.learning_rate));
  }
  last_seconds_ = now;
  last_iterations_ = iterations_done;
  epoch_samples_ += sums[0];
  epoch_loss_ += sums[1];
  if (iterations_done % facts_.rounds != 0) return;
  observer_.epoch({progress.epoch,
                   iterations_done,
                   now,
                   epoch_samples_ / std::max(1e-9, now - epoch_began_),
                   epoch_loss_ / epoch_samples_,
                   {}});
  epoch_began_ = now;
  epoch_samples_ = epoch_loss_ = 0;
}

void Monitor::validated(int64_t iterations_done, const std::vector<double>& sums) {
  const std::scoped_lock lock(mutex_);
  const Loop& loop = *program_.validation;
  Validated event;
  event.epoch = epoch_of(iterations_done);
  event.iteration = iterations_done;
  event.samples = int64_t(std::llround(sums[0]));
  event.seconds = seconds();
  Metrics all;
  for (size_t m = 0; m < loop.metrics.size(); ++m) all.emplace_back(loop.metrics[m], sums[m + 1] / sums[0]);
  for (const auto& [name, value] : all) {
    if (name == program_.training.metrics[0]) {
      event.loss = value;
    } else {
      event.metrics.emplace_back(name, value);
      const auto known = std::find_if(best_.begin(), best_.end(), [&](const auto& b) { return b.first == name; });
      if (known == best_.end()) {
        best_.emplace_back(name, value);
      } else {
        known->second = std::max(known->second, value);
      }
    }
    for (size_t t = 0; t < facts_.targets.size(); ++t) {
      const Target& target = facts_.targets[t];
      if (target.metric == name && targets_[t].seconds < 0 && target.met(value)) targets_[t].seconds = event.seconds;
    }
  }
  has_validated_ = true;
  last_ = event;
  observer_.validation(event);
}

bool Monitor::all_targets_reached() const {
  const std::scoped_lock lock(mutex_);
  return !targets_.empty() &&
         std::all_of(targets_.begin(), targets_.end(), [](const auto& t) { return t.seconds >= 0; });
}

RunFinished Monitor::finish(int64_t iterations, std::string reason) const {
  const std::scoped_lock lock(mutex_);
  RunFinished end;
  end.reason = std::move(reason);
  end.iteration = iterations;
  end.epoch = epoch_of(iterations);
  end.images = iterations * facts_.learners * program_.training.batch;
  end.seconds = seconds();
  end.images_per_second = double(end.images) / std::max(1e-9, end.seconds);
  end.validated = has_validated_;
  end.last = last_;
  end.best = best_;
  end.targets = targets_;
  return end;
}

}  // namespace arbalest
