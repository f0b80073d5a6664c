// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "executor/session/session.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {

std::string SegmentFaults::split_of(std::string_view op) const {
  return string_attribute(*prepared_.graph.find_op(op), "split");
}

// The samples of iterations `from` to `to`, exclusive, by the iterations' order of data: of two epochs at most.
std::vector<int64_t> SegmentFaults::samples_trained(int64_t from, int64_t to) const {
  const SegmentTimes& times = clock_.times();
  std::vector<int64_t> samples, batch(size_t(times.batch));
  for (int64_t tick = std::max(from, to - 2 * times.rounds); tick < to; ++tick) {
    for (int64_t learner = 0; learner < times.learners; ++learner) {
      order_.batch(uint64_t(clock_.epoch_of(tick)), clock_.batch_of(tick, learner), batch);
      samples.insert(samples.end(), batch.begin(), batch.end());
    }
  }
  std::sort(samples.begin(), samples.end());
  samples.erase(std::unique(samples.begin(), samples.end()), samples.end());
  return samples;
}

std::optional<DataFault> SegmentFaults::in_samples(LookFor what, const std::vector<int64_t>& samples) const {
  if (samples.empty()) return std::nullopt;
  return fault_in_data(prepared_.program.training(), *prepared_.training, split_of(op::Prefetch), what, samples);
}

std::optional<DataFault> SegmentFaults::in_validation(LookFor what) const {
  return fault_in_data(*prepared_.program.find(LoopRole::Validate), *prepared_.validation, split_of(op::Validate),
                       what);
}

std::string SegmentFaults::cause_in_range() const {
  const std::string cause = unscaled_numbers(prepared_.graph, *prepared_.training, split_of(op::Prefetch));
  return cause.empty() ? "" : "; the probable cause: " + cause;
}

void SegmentFaults::fail_for(const DataFault& fault, const std::string& what, int64_t iterations) const {
  const int64_t at = clock_.position(iterations).iteration;
  const std::string text = fmt::format("{} iteration {}: {}", what, at, fault.text);
  if (fault.of_label) throw TaskError(text, at);
  throw Diverged(text, at, Diverged::Of::Training);
}

void SegmentFaults::explain_training(const Diverged& error, int64_t from, int64_t to, bool skips) const {
  if (const auto fault = in_samples(LookFor::LabelsAndNumbers, samples_trained(from, to))) {
    fail_for(*fault,
             skips ? fmt::format("the last {} updates have been skipped up to", Monitor::kMostSkipped)
                   : "the loss is no longer finite after",
             to);
  }
  throw Diverged(error.what() + cause_in_range(), error.iteration, error.of);
}

void SegmentFaults::check_skipped(int64_t from, int64_t to) {
  sound_trained_.resize(size_t(prepared_.training->size()), false);
  std::vector<int64_t> samples = samples_trained(from, to);
  std::erase_if(samples, [&](int64_t sample) { return sound_trained_[size_t(sample)]; });
  if (const auto fault = in_samples(LookFor::Labels, samples)) fail_for(*fault, "updates have been skipped up to", to);
  for (const int64_t sample : samples) sound_trained_[size_t(sample)] = true;
}

std::string SegmentFaults::text_of(const DataFault& fault, const RunPosition& at) const {
  return fmt::format("the validation after iteration {} (epoch {}) is not finite: {}", at.iteration, at.epoch,
                     fault.text);
}

void SegmentFaults::explain_validation(const Diverged& error, int64_t iterations) const {
  const RunPosition at = clock_.position(iterations);
  auto fault = in_validation(LookFor::LabelsAndNumbers);
  // Samples that were trained on may have spoilt the weights without any report of it so far.
  if (!fault) fault = in_samples(LookFor::LabelsAndNumbers, samples_trained(0, iterations));
  if (fault && fault->of_label) throw TaskError(text_of(*fault, at), at.iteration);
  throw Diverged(fault ? text_of(*fault, at) : error.what() + cause_in_range(), error.iteration, error.of);
}

void SegmentFaults::check_undefined(const Measurement& measured, int64_t iterations) {
  const bool undefined =
      std::any_of(measured.values.begin(), measured.values.end(), [](double value) { return std::isnan(value); });
  if (!undefined || sound_labels_) return;
  const RunPosition at = clock_.position(iterations);
  if (const auto fault = in_validation(LookFor::Labels)) throw TaskError(text_of(*fault, at), at.iteration);
  sound_labels_ = true;
}

}  // namespace arbalest
