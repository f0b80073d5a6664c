// SPDX-License-Identifier: Apache-2.0
#include "executor/training/learner_search.h"

#include <algorithm>

#include "base/checked.h"

namespace arbalest {
namespace {

LearnerTuner::Options tuning_of(const SessionOptions& options, const Prepared& prepared) {
  const PlanRequest& request = prepared.request;
  const Program& program = prepared.program;
  const int64_t most = request.training_samples / (int64_t(request.devices.size()) * program.training().batch *
                                                   program.accumulate);  // that an epoch has batches for
  LearnerTuner::Options tuning = options.learners.tuning;
  tuning.most_learners = int32_t(std::min<int64_t>(tuning.most_learners, most));
  return tuning;
}

}  // namespace

LearnerSearch::LearnerSearch(const SessionOptions& options, const Prepared& prepared, const Monitor& monitor,
                             RunObserver& events)
    : options_(options),
      prepared_(prepared),
      monitor_(monitor),
      events_(events),
      tuner_(tuning_of(options, prepared)) {}

bool LearnerSearch::observe(const RunPosition& at, double seconds, const InputReport& input) {
  waits_for_input_ = input.bound();
  const int32_t before = tuner_.learners();
  if (before != prepared_.request.learners) return false;  // what comes after the decision
  const auto decision = tuner_.observe(seconds, at.images);
  if (!decision) return false;
  tell(*decision, at);
  return tuner_.learners() != before;
}

void LearnerSearch::tell(const LearnerTuner::Decision& decision, const RunPosition& at) {
  Tuned event;
  event.learners = decision.measured;
  event.next = decision.next;
  event.images_per_second = decision.images_per_second;
  event.reason = decision.reason + (waits_for_input_ ? "; training waits for its input" : "");
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  const int64_t samples = prepared_.training->size(), batch = prepared_.program.training().batch;
  const int64_t devices = int64_t(prepared_.request.devices.size());
  const auto phases = strategy_phases(prepared_.graph, options_.learners.strategy, devices * decision.next);
  event.strategy = phase_at(phases, at.epoch).phase.strategy.name;
  event.iterations_per_epoch = rounds_of(samples, devices * decision.next, batch, prepared_.program.accumulate);
  const double left = prepared_.total_epochs - at.epochs;
  event.iterations =
      options_.length.iterations.value_or(at.iteration + whole_part(left * double(event.iterations_per_epoch)));
  event.seconds = monitor_.seconds();
  events_.on(event);
}

}  // namespace arbalest
