// SPDX-License-Identifier: Apache-2.0

// A segment where it stands still: what it holds then, and how another one goes on from that.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "executor/run/first_not_finite.h"
#include "executor/session/segment.h"

namespace arbalest {

std::vector<ValueId> kept_values(const Loop& training) {
  const ArenaValues& arenas = training.arenas;
  // Gradients are of one iteration: if several make an update, their sum is another value.
  std::vector<ValueId> elsewhere = {arenas.weights, arenas.weights_lowered, arenas.gradients, arenas.statistics,
                                    arenas.average, arenas.averaged,        arenas.frozen};
  for (const ArenaValues::Slot& slot : arenas.slots) elsewhere.push_back(slot.value);
  std::vector<ValueId> kept;
  for (ValueId v = 0; v < ValueId(training.graph.values.size()); ++v) {
    const Value& value = training.graph.values[size_t(v)];
    const bool own = value.view.base == kNone && value.role == Role::State;
    if (own && std::find(elsewhere.begin(), elsewhere.end(), v) == elsewhere.end()) kept.push_back(v);
  }
  return kept;
}

int64_t weight_bytes_of(const Loop& training, ValueId kept) {
  const ArenaValues& arenas = training.arenas;
  if (kept == arenas.tally) return int64_t((training.sums - 1 - training.metrics.size()) * sizeof(double));
  const auto bytes = [&](ValueId value) {
    return value == kNone ? 0 : training.graph.values[size_t(value)].type.bytes();
  };
  const bool sums = training.graph.values[size_t(kept)].name == "accumulated";
  return sums ? bytes(arenas.gradients) - bytes(arenas.weights) : 0;
}

SegmentSnapshot Segment::snapshot() const {
  SegmentSnapshot snapshot;
  snapshot.from = from_;
  snapshot.learners = int32_t(learners_per_device_);
  snapshot.at = scheduler_ ? scheduler_->position() : at_;
  snapshot.state = state();
  snapshot.corrections = corrections_;
  snapshot.updates = updates_;
  for (const Replica& replica : learner_replicas()) {
    auto& values = snapshot.kept.emplace_back();
    for (const ValueId value : kept_values(training())) values.push_back(read(training(), replica, value));
  }
  snapshot.reported = reported_;
  snapshot.trained = trained_->last();
  const LoopPlan* validation_plan = plan_.handles.find(LoopRole::Validate);
  if (!validation_plan) return snapshot;

  // A validation that is under way begins again, so that its sums begin where the one before has ended.
  const int64_t ended = snapshot.at.validations;
  snapshot.validated = validated_->tally().last();
  for (const Replica& replica : validation_plan->replicas) {
    auto& sums = snapshot.tallies.emplace_back(snapshot.validated.size(), 0);
    if (ended > 0) {
      std::memcpy(sums.data(), binding_->address(replica.tally, ended - 1), sums.size() * sizeof(double));
    }
  }
  snapshot.validating = by_validation_->coarse_of(snapshot.at.iterations) > ended;
  if (!snapshot.validating) return snapshot;
  const Replica& first = validation_plan->replicas.front();
  snapshot.model.weights = read(validation(), first, validation().arenas.weights);
  snapshot.model.statistics = read(validation(), first, validation().arenas.statistics);
  return snapshot;
}

void Segment::put_validation(const SegmentSnapshot& snapshot) const {
  const LoopPlan* planned = plan_.handles.find(LoopRole::Validate);
  if (!planned) return;
  const ArenaValues& arenas = validation().arenas;
  if (snapshot.tallies.size() != planned->replicas.size()) {
    throw RunError("the checkpoint's validation is not one of such a run");
  }
  for (size_t d = 0; d < planned->replicas.size(); ++d) {
    const Replica& replica = planned->replicas[d];
    const std::vector<double>& sums = snapshot.tallies[d];
    std::vector<std::byte> bytes(sums.size() * sizeof(double));
    if (sums.size() != snapshot.validated.size() || sums.size() != validated_->tally().last().size()) {
      throw RunError("the checkpoint's validation measures other things than the graph");
    }
    std::memcpy(bytes.data(), sums.data(), bytes.size());
    binding_->put(replica.placement.of[size_t(arenas.tally)], 0, bytes);
    if (snapshot.at.validations > 0) binding_->put({replica.tally, 0, 0}, snapshot.at.validations - 1, bytes);
    if (!snapshot.validating) continue;
    const auto put = [&](ValueId value, const std::vector<std::byte>& content) {
      if (value != kNone) binding_->put(replica.placement.of[size_t(value)], 0, content);
    };
    put(arenas.weights, snapshot.model.weights);
    put(arenas.statistics, snapshot.model.statistics);
    if (arenas.weights_lowered != kNone) put(arenas.weights_lowered, lowered_content(snapshot.model.weights));
  }
  validated_->tally().go_on_from(snapshot.validated);
}

bool Segment::at_end() const {
  const PlanPosition at = scheduler_ ? scheduler_->position() : at_;
  const bool validated = !by_validation_ || at.validations == plan_.clocks[size_t(by_validation_->coarse)].ticks;
  return at.iterations == plan_.clocks[0].ticks && validated;
}

// Restores the content of training's memory.
void Segment::put_back(const SegmentSnapshot& snapshot) const {
  put_learners(snapshot.state);
  const std::vector<ValueId> kept = kept_values(training());
  for (const Replica& replica : learner_replicas()) {
    for (size_t i = 0; i < kept.size(); ++i) {
      binding_->put(replica.placement.of[size_t(kept[i])], 0, snapshot.kept[size_t(replica.learner)][i]);
    }
  }
  if (by_sync_) put_average(snapshot.state.average, snapshot.state.previous, averagings(snapshot.at.iterations));
  put_moving_average(snapshot.state.moving_average);
}

std::string Segment::not_finite(const SegmentSnapshot& snapshot) const {
  const std::vector<ValueId> kept = kept_values(training());
  for (const Replica& replica : learner_replicas()) {
    const LearnerState& learner = snapshot.state.learners[size_t(replica.learner)];
    const std::string of = " of " + name_of(replica);
    if (!all_finite(DataType::Float32, learner.weights)) return "the weights" + of;
    if (!all_finite(DataType::Float32, learner.statistics)) return "the running statistics" + of;
    for (size_t i = 0; i < kept.size(); ++i) {
      const Value& value = training().graph.values[size_t(kept[i])];
      if (all_finite(value.type.dtype, snapshot.kept[size_t(replica.learner)][i])) continue;
      return fmt::format("the values of '{}'{}", value.name, of);
    }
  }
  return "";
}

std::string Segment::first_not_finite(const SegmentSnapshot& before) const {
  put_back(before);
  const auto found = arbalest::first_not_finite(*binding_, before.at.iterations);
  return found ? to_string(*found)
               : "all values of the step are finite when its nodes run once more, one by one: what is not is made "
                 "between learners, or not each time";
}

// Sums of a checkpoint from before means had weights of their own get these: samples weighed 1 each.
SegmentSnapshot Segment::weighed(SegmentSnapshot snapshot) const {
  const Loop& loop = training();
  const size_t counts = prepared_.program.skips ? 2 : 0;
  add_weights(loop.metrics, counts, snapshot.trained);
  if (validated_) {
    add_weights(validation().metrics, 0, snapshot.validated);
    for (std::vector<double>& sums : snapshot.tallies) add_weights(validation().metrics, 0, sums);
  }
  const std::vector<ValueId> kept = kept_values(loop);
  for (auto& learner : snapshot.kept) {
    for (size_t i = 0; i < std::min(kept.size(), learner.size()); ++i) {
      std::vector<std::byte>& bytes = learner[i];
      const auto whole = size_t(loop.graph.values[size_t(kept[i])].type.bytes());
      if (bytes.size() >= whole) continue;
      if (kept[i] == loop.arenas.tally) {
        std::vector<double> sums(bytes.size() / sizeof(double));
        std::memcpy(sums.data(), bytes.data(), bytes.size());
        add_weights(loop.metrics, counts, sums);
        bytes.resize(whole);
        std::memcpy(bytes.data(), sums.data(), std::min(whole, sums.size() * sizeof(double)));
        continue;
      }
      const int64_t accumulate = prepared_.program.accumulate, batches = snapshot.at.iterations % rounds_ % accumulate;
      const float weight = float(batches) / float(accumulate);
      const size_t before = bytes.size();
      bytes.resize(whole);
      std::memcpy(bytes.data() + before, &weight, std::min(whole - before, sizeof weight));
    }
  }
  return snapshot;
}

void Segment::start_from(const SegmentSnapshot& checkpoint) {
  const bool older = checkpoint.trained.size() < trained_->last().size() ||
                     (validated_ && checkpoint.validated.size() < validated_->tally().last().size());
  const std::optional<SegmentSnapshot> completed = older ? std::optional(weighed(checkpoint)) : std::nullopt;
  const SegmentSnapshot& snapshot = completed ? *completed : checkpoint;
  if (snapshot.at.iterations > plan_.clocks[0].ticks) {
    throw GraphError(fmt::format("the checkpoint is after iteration {}, and the run ends after {}",
                                 from_.iteration + snapshot.at.iterations, from_.iteration + plan_.clocks[0].ticks));
  }
  const int64_t begun = by_validation_ ? by_validation_->coarse_of(snapshot.at.iterations) : 0;
  const int64_t copied =
      by_validation_ ? by_validation_->coarse_of(std::max<int64_t>(0, snapshot.at.iterations - 1)) : 0;
  const bool within = snapshot.at.iterations >= 0 && snapshot.at.validations >= copied - 1 &&
                      snapshot.at.validations >= 0 && snapshot.at.validations <= begun && snapshot.reported >= 0 &&
                      snapshot.reported <= snapshot.at.iterations;
  const auto learners = size_t(learners_);
  const bool whole = snapshot.state.learners.size() == learners && snapshot.corrections.size() == learners &&
                     snapshot.updates.size() == learners && snapshot.kept.size() == learners &&
                     snapshot.trained.size() == trained_->last().size();
  if (!within || !whole) throw RunError("the checkpoint's position is not one of such a run");
  at_ = snapshot.at;
  frozen_ = snapshot.state.frozen;
  corrections_ = snapshot.corrections;
  updates_ = snapshot.updates;
  put_back(snapshot);
  put_validation_state();
  put_validation(snapshot);
  reported_ = snapshot.reported;
  trained_->go_on_from(snapshot.trained);
  read_.iterations = at_.iterations;
}

}  // namespace arbalest
