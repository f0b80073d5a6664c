// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/whole_state.h"

#include <utility>

#include "executor/world/part.h"

namespace arbalest {
namespace {

std::string packed(const std::vector<LearnerState>& learners) {
  PartWriter out;
  for (const LearnerState& learner : learners) {
    out.array(learner.weights);
    out.array(learner.statistics);
    out.number(uint64_t(learner.slots.size()));
    for (const auto& slot : learner.slots) out.array(slot);
    out.number(learner.updates);
    out.number(learner.correction);
  }
  return std::move(out.bytes);
}

std::vector<LearnerState> learners_of(const Ranks::Parts& parts) {
  std::vector<LearnerState> learners;
  for (const std::string& part : parts) {
    for (PartReader in(part); !in.at_end();) {
      LearnerState& learner = learners.emplace_back();
      learner.weights = in.array<std::byte>();
      learner.statistics = in.array<std::byte>();
      for (auto slots = in.number<uint64_t>(); slots > 0; --slots) learner.slots.push_back(in.array<std::byte>());
      learner.updates = in.number<int64_t>();
      learner.correction = in.number<double>();
    }
  }
  return learners;
}

}  // namespace

RunState gathered(Ranks& ranks, RunState mine) {
  const Ranks::Parts parts = ranks.gather("learners", packed(mine.learners));
  if (ranks.first()) mine.learners = learners_of(parts);
  return mine;
}

RunState exchanged(Ranks& ranks, RunState mine) {
  mine.learners = learners_of(ranks.exchange("all learners", packed(mine.learners)));
  return mine;
}

SegmentSnapshot gathered(Ranks& ranks, SegmentSnapshot mine) {
  mine.state = gathered(ranks, std::move(mine.state));
  PartWriter out;
  out.number(uint64_t(mine.kept.size()));
  for (const auto& values : mine.kept) {
    out.number(uint64_t(values.size()));
    for (const auto& value : values) out.array(value);
  }
  for (const std::vector<double>& sums : mine.tallies) out.array(sums);
  const Ranks::Parts parts = ranks.gather("snapshot", std::move(out.bytes));
  if (!ranks.first()) return mine;
  mine.kept.clear();
  mine.tallies.clear();
  for (const std::string& part : parts) {
    PartReader in(part);
    for (auto learners = in.number<uint64_t>(); learners > 0; --learners) {
      auto& values = mine.kept.emplace_back();
      for (auto count = in.number<uint64_t>(); count > 0; --count) values.push_back(in.array<std::byte>());
    }
    while (!in.at_end()) mine.tallies.push_back(in.array<double>());
  }
  return mine;
}

}  // namespace arbalest
