// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/segment_snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "executor/session/metrics.h"

namespace arbalest {

std::vector<ValueId> kept_values(const Loop& training) {
  const ArenaValues& arenas = training.arenas;
  // Gradients are of one iteration: if several make an update, their sum is another value.
  std::vector<ValueId> elsewhere = {arenas.weights, arenas.weights_lowered, arenas.gradients, arenas.statistics,
                                    arenas.average, arenas.averaged,        arenas.frozen};
  for (const ArenaValues::Slot& slot : arenas.slots) elsewhere.push_back(slot.value);
  std::vector<ValueId> kept;
  for (const ValueId v : training.graph.values.ids()) {
    const Value& value = training.graph.values[v];
    const bool own = value.view.base == kNone && value.role == Role::State;
    if (own && std::find(elsewhere.begin(), elsewhere.end(), v) == elsewhere.end()) kept.push_back(v);
  }
  return kept;
}

int64_t weight_bytes_of(const Loop& training, ValueId kept) {
  const ArenaValues& arenas = training.arenas;
  if (kept == arenas.tally) return int64_t((training.sums - 1 - training.metrics.size()) * sizeof(double));
  const auto bytes = [&](ValueId value) { return value == kNone ? 0 : training.graph.values[value].type.bytes(); };
  const bool sums = training.graph.values[kept].name == "accumulated";
  return sums ? bytes(arenas.gradients) - bytes(arenas.weights) : 0;
}

SegmentSnapshot with_weights(SegmentSnapshot snapshot, const Program& program, int64_t rounds, bool validates) {
  const Loop& loop = program.training();
  const size_t counts = program.skips ? 2 : 0;
  add_weights(loop.metrics, counts, snapshot.trained);
  if (validates) {
    const std::vector<LoopMetric>& metrics = program.find(LoopRole::Validate)->metrics;
    add_weights(metrics, 0, snapshot.validated);
    for (std::vector<double>& sums : snapshot.tallies) add_weights(metrics, 0, sums);
  }
  const std::vector<ValueId> kept = kept_values(loop);
  for (auto& learner : snapshot.kept) {
    for (size_t i = 0; i < std::min(kept.size(), learner.size()); ++i) {
      std::vector<std::byte>& bytes = learner[i];
      const auto whole = size_t(loop.graph.values[kept[i]].type.bytes());
      if (bytes.size() >= whole) continue;
      if (kept[i] == loop.arenas.tally) {
        std::vector<double> sums(bytes.size() / sizeof(double));
        std::memcpy(sums.data(), bytes.data(), bytes.size());
        add_weights(loop.metrics, counts, sums);
        bytes.resize(whole);
        std::memcpy(bytes.data(), sums.data(), std::min(whole, sums.size() * sizeof(double)));
        continue;
      }
      const int64_t batches = snapshot.at.iterations % rounds % program.accumulate;
      const float weight = float(batches) / float(program.accumulate);
      const size_t before = bytes.size();
      bytes.resize(whole);
      std::memcpy(bytes.data() + before, &weight, std::min(whole - before, sizeof weight));
    }
  }
  return snapshot;
}

SegmentSnapshot with_validation(SegmentSnapshot snapshot, int64_t devices, size_t sums) {
  snapshot.validated.assign(sums, 0);
  snapshot.tallies.assign(size_t(devices), std::vector<double>(sums, 0));
  return snapshot;
}

SegmentSnapshot without_last_validation(SegmentSnapshot snapshot) {
  --snapshot.at.validations;
  std::fill(snapshot.validated.begin(), snapshot.validated.end(), 0);
  for (std::vector<double>& sums : snapshot.tallies) std::fill(sums.begin(), sums.end(), 0);
  return snapshot;
}

}  // namespace arbalest
