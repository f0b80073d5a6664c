// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment_state.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "ops/optim/moving_average.h"

namespace arbalest {

SegmentState::SegmentState(const Prepared& prepared, const Binding& binding, const SegmentClock& clock,
                           Initialisation drawn)
    : prepared_(prepared), binding_(binding), plan_(binding.plan()), clock_(clock), drawn_(drawn) {}

void SegmentState::put(InitialValues values) {
  const ArenaValues& arenas = training().arenas;
  if (arenas.frozen != kNone) frozen_ = values.at(arenas.frozen);
  add_frozen(training(), values);
  starts_.assign(size_t(clock_.times().learners), {});
  for (const Replica& replica : learners()) put_values(binding_, replica, training().graph, values);
  const std::vector<std::byte>& weights = values.at(arenas.weights);
  for (size_t device = 0; device < plan_.handles.averages.size(); ++device) put_average(device, 0, weights, weights);
  put_moving_average({}, weights);
  put_validation();
}

void SegmentState::put(const RunState& state) {
  frozen_ = state.frozen;
  for (const LearnerState& learner : state.learners) starts_.push_back({learner.correction, learner.updates});
  put_learners(state);
  put_averages(state);
  put_validation();
}

void SegmentState::put(const SegmentSnapshot& given) {
  std::optional<SegmentSnapshot> met;
  if (!has_hosts_of(given.state)) {
    met = given;
    met->state = with_hosts_met(std::move(met->state));
  }
  const SegmentSnapshot& snapshot = met ? *met : given;
  frozen_ = snapshot.state.frozen;
  for (size_t l = 0; l < snapshot.corrections.size(); ++l) {
    starts_.push_back({snapshot.corrections[l], snapshot.updates[l]});
  }
  put_back(snapshot);
  put_validation();
  put_validation(snapshot);
}

void SegmentState::put_back(const SegmentSnapshot& snapshot) const {
  put_learners(snapshot.state, snapshot.first_learner);
  const std::vector<ValueId> kept = kept_values(training());
  for (const Replica& replica : learners()) {
    const auto& values = snapshot.kept[size_t(replica.learner - snapshot.first_learner)];
    for (size_t i = 0; i < kept.size(); ++i) {
      binding_.put(replica.placement.of[kept[i]], 0, values[i]);
    }
  }
  put_averages(snapshot.state, clock_.times().sync ? clock_.averagings(snapshot.at.iterations) : 0);
}

size_t SegmentState::average_of(int32_t device) const {
  return plan_.handles.by_hosts == kNone ? 0 : size_t(plan_.devices[size_t(device)].host_number);
}

// False if the learners of all ranks follow the averages of other hosts than the plan's.
bool SegmentState::has_hosts_of(const RunState& state) const {
  if (state.averages.size() < 2) return true;
  const PlanRequest& request = prepared_.request;
  for (size_t learner = 0; learner < state.learners.size(); ++learner) {
    const int32_t host = request.devices[learner / size_t(request.learners)].host_number;
    if (plan_.handles.by_hosts == kNone || state.learners[learner].host != host) return false;
  }
  return true;
}

// Averaging n reads slot n mod 2 as z and the other as z_prev.
void SegmentState::put_average(size_t device, int64_t averagings, const std::vector<std::byte>& now,
                               const std::vector<std::byte>& before) const {
  const Operand models{plan_.handles.averages[device], 0, 0};
  binding_.put(models, averagings, now);
  binding_.put(models, averagings + 1, before);
}

void SegmentState::put_moving_average(const MovingAverageProgress& progress,
                                      const std::vector<std::byte>& weights) const {
  std::vector<std::byte> bytes(sizeof progress);
  std::memcpy(bytes.data(), &progress, sizeof progress);
  for (const MovingAverageBuffers& buffers : plan_.handles.moving_averages) {
    binding_.put({buffers.weights, 0, 0}, 0, weights);
    binding_.put({buffers.progress, 0, 0}, 0, bytes);
  }
}

void SegmentState::put_averages(const RunState& state, int64_t averagings) const {
  for (size_t device = 0; device < plan_.handles.averages.size(); ++device) {
    const size_t place = state.averages.size() == 1 ? 0 : average_of(int32_t(device));
    if (place >= state.averages.size()) throw RunError(fmt::format("there is no average of host {}", place));
    put_average(device, averagings, state.averages[place].now, state.averages[place].before);
  }
  put_moving_average({state.moving_average.updates, state.moving_average.within}, state.moving_average.weights);
}

// Adds the frozen values, in the precisions that the loop reads.
void SegmentState::add_frozen(const Loop& loop, InitialValues& values) const {
  if (loop.arenas.frozen != kNone) values[loop.arenas.frozen] = frozen_;
  if (loop.arenas.frozen_lowered != kNone) values[loop.arenas.frozen_lowered] = lowered_content(frozen_);
}

void SegmentState::put_learners(const RunState& state, int64_t first_learner) const {
  const ArenaValues& arenas = training().arenas;
  std::vector<ValueId> carried = {arenas.weights, arenas.statistics, arenas.frozen};
  for (const ArenaValues::Slot& slot : arenas.slots) carried.push_back(slot.value);
  InitialValues values = initial_values(training(), *prepared_.training, drawn_, carried);
  add_frozen(training(), values);
  for (const Replica& replica : learners()) {
    const LearnerState& learner = state.learners[size_t(replica.learner - first_learner)];
    const auto set = [&](ValueId value, std::vector<std::byte> bytes) {
      if (value != kNone) values[value] = std::move(bytes);
    };
    set(arenas.weights, learner.weights);
    for (size_t k = 0; k < arenas.slots.size(); ++k) set(arenas.slots[k].value, learner.slots[k]);
    set(arenas.statistics, learner.statistics);
    if (arenas.weights_lowered != kNone) set(arenas.weights_lowered, lowered_content(learner.weights));
    put_values(binding_, replica, training().graph, values);
  }
}

// Puts everything in place that validation and recalibration read, except for the weights, which the snapshot makes.
void SegmentState::put_validation() const {
  const auto put = [&](LoopRole role, const Source& source) {
    const Loop& loop = *prepared_.program.find(role);
    InitialValues values = initial_values(loop, source, drawn_, {loop.arenas.weights, loop.arenas.frozen});
    add_frozen(loop, values);
    for (const Replica& replica : plan_.handles.find(role)->replicas) put_values(binding_, replica, loop.graph, values);
  };
  if (plan_.handles.find(LoopRole::Validate)) put(LoopRole::Validate, *prepared_.validation);
  if (plan_.handles.find(LoopRole::Recalibrate)) put(LoopRole::Recalibrate, *prepared_.training);
}

// The sums of validations, and the model of one that was under way.
void SegmentState::put_validation(const SegmentSnapshot& snapshot) const {
  const LoopPlan* planned = plan_.handles.find(LoopRole::Validate);
  if (!planned) return;
  const ArenaValues& arenas = prepared_.program.find(LoopRole::Validate)->arenas;
  for (const Replica& replica : planned->replicas) {
    const std::vector<double>& sums = snapshot.tallies[size_t(replica.place)];
    std::vector<std::byte> bytes(sums.size() * sizeof(double));
    std::memcpy(bytes.data(), sums.data(), bytes.size());
    binding_.put(replica.placement.of[arenas.tally], 0, bytes);
    if (snapshot.at.validations > 0) binding_.put({replica.tally, 0, 0}, snapshot.at.validations - 1, bytes);
    if (!snapshot.validating) continue;
    const auto put = [&](ValueId value, const std::vector<std::byte>& content) {
      if (value != kNone) binding_.put(replica.placement.of[value], 0, content);
    };
    put(arenas.weights, snapshot.model.weights);
    put(arenas.statistics, snapshot.model.statistics);
    if (arenas.weights_lowered != kNone) put(arenas.weights_lowered, lowered_content(snapshot.model.weights));
  }
}

std::vector<std::byte> SegmentState::bytes_of(const Loop& loop, const Replica& replica, ValueId value) const {
  if (value == kNone) return {};
  return binding_.get(replica.placement.of[value], 0, loop.graph.values[value].type.bytes());
}

LearnerState SegmentState::learner(const Replica& replica, int64_t iterations) const {
  const ArenaValues& arenas = training().arenas;
  LearnerState learner;
  learner.weights = bytes_of(training(), replica, arenas.weights);
  learner.statistics = bytes_of(training(), replica, arenas.statistics);
  for (const ArenaValues::Slot& slot : arenas.slots) {
    learner.slots.push_back(bytes_of(training(), replica, slot.value));
  }
  learner.updates = clock_.updates_before(iterations, start_of(replica.learner).updates);
  learner.host = int32_t(average_of(replica.device));
  return learner;
}

AverageState SegmentState::average(size_t device, int64_t averagings) const {
  const Operand models{plan_.handles.averages[device], 0, 0};
  const int64_t bytes = plan_.buffers[models.buffer].bytes;
  return {binding_.get(models, averagings, bytes), binding_.get(models, averagings + 1, bytes)};
}

RunState SegmentState::read(int64_t iterations) const {
  RunState state;
  state.frozen = frozen_;
  for (const Replica& replica : learners()) state.learners.push_back(learner(replica, iterations));
  state.unaveraged = clock_.unaveraged(iterations);
  state.apart = clock_.apart(iterations);
  state.moving_average = moving_average();
  const int64_t averagings = clock_.times().sync ? clock_.averagings(iterations) : 0;
  state.averaged = !plan_.handles.averages.empty() && averagings > 0 && state.unaveraged == 0;
  for (size_t device = 0; device < plan_.handles.averages.size(); ++device) {  // those of one host are alike
    const size_t host = average_of(int32_t(device));
    if (host >= state.averages.size()) state.averages.resize(host + 1);
    if (state.averages[host].now.empty()) state.averages[host] = average(device, averagings);
  }
  return state;
}

MovingAverage SegmentState::moving_average() const {
  if (plan_.handles.moving_averages.empty()) return {};
  const MovingAverageBuffers& from = plan_.handles.moving_averages.front();
  MovingAverage average;
  average.decay = prepared_.program.ema;
  average.weights = binding_.get({from.weights, 0, 0}, 0, plan_.buffers[from.weights].bytes);
  MovingAverageProgress progress;
  std::memcpy(&progress, binding_.get({from.progress, 0, 0}, 0, sizeof progress).data(), sizeof progress);
  average.updates = progress.updates;
  average.within = progress.within;
  return average;
}

void SegmentState::read(SegmentSnapshot& snapshot) const {
  const SegmentTimes& times = clock_.times();
  snapshot.from = times.from;
  snapshot.learners = prepared_.request.learners;
  snapshot.first_learner = learners().front().learner;
  snapshot.state = read(snapshot.at.iterations);
  for (const LearnerStart& start : starts_) {
    snapshot.corrections.push_back(start.correction);
    snapshot.updates.push_back(start.updates);
  }
  for (const Replica& replica : learners()) {
    auto& values = snapshot.kept.emplace_back();
    for (const ValueId value : kept_values(training())) values.push_back(bytes_of(training(), replica, value));
  }
  const LoopPlan* validation = plan_.handles.find(LoopRole::Validate);
  if (!validation) return;

  // A validation that is under way begins again, so that its sums begin where the one before has ended.
  const Loop& loop = *prepared_.program.find(LoopRole::Validate);
  const int64_t ended = snapshot.at.validations;
  for (const Replica& replica : validation->replicas) {
    auto& sums = snapshot.tallies.emplace_back(loop.sums, 0);
    if (ended > 0) std::memcpy(sums.data(), binding_.address(replica.tally, ended - 1), sums.size() * sizeof(double));
  }
  snapshot.validating = times.validations->of(snapshot.at.iterations) > ended;
  if (!snapshot.validating) return;
  const Replica& first = validation->replicas.front();
  snapshot.model.weights = bytes_of(loop, first, loop.arenas.weights);
  snapshot.model.statistics = bytes_of(loop, first, loop.arenas.statistics);
}

ModelState SegmentState::validated_model() const {
  const auto kept = [&](BufferId buffer) {
    if (buffer == kNone) return std::vector<std::byte>();
    const std::byte* from = binding_.address(buffer, 0);
    return std::vector<std::byte>(from, from + plan_.buffers[buffer].bytes);
  };
  return {kept(plan_.handles.kept_weights), kept(plan_.handles.kept_statistics), frozen_};
}

std::string SegmentState::name_of(const Replica& learner) const {
  return fmt::format("learner {} on {}", learner.learner, to_string(plan_.devices[size_t(learner.device)]));
}

std::string SegmentState::not_finite(const SegmentSnapshot& snapshot) const {
  const std::vector<ValueId> kept = kept_values(training());
  for (const Replica& replica : learners()) {
    const auto place = size_t(replica.learner - snapshot.first_learner);
    const LearnerState& learner = snapshot.state.learners[place];
    const std::string of = " of " + name_of(replica);
    if (!all_finite(DataType::Float32, learner.weights)) return "the weights" + of;
    if (!all_finite(DataType::Float32, learner.statistics)) return "the running statistics" + of;
    for (size_t i = 0; i < kept.size(); ++i) {
      const Value& value = training().graph.values[kept[i]];
      if (all_finite(value.type.dtype, snapshot.kept[place][i])) continue;
      return fmt::format("the values of '{}'{}", value.name, of);
    }
  }
  return "";
}

}  // namespace arbalest
