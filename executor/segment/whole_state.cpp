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
    out.number(learner.host);
  }
  return std::move(out.bytes);
}

// The averages of this rank's hosts, if it is the first rank of its host: the others have the same.
std::string packed(const Ranks& ranks, const std::vector<AverageState>& averages) {
  for (int rank = 0; rank < ranks.rank(); ++rank) {
    if (ranks.host(rank) == ranks.host(ranks.rank())) return "";
  }
  PartWriter out;
  for (size_t host = 0; host < averages.size(); ++host) {
    if (averages[host].now.empty()) continue;
    out.number(uint64_t(host));
    out.array(averages[host].now);
    out.array(averages[host].before);
  }
  return std::move(out.bytes);
}

// Adds the averages of hosts that `averages` lacks.
void add_averages(const Ranks::Parts& parts, std::vector<AverageState>& averages) {
  for (const std::string& part : parts) {
    for (PartReader in(part); !in.at_end();) {
      const auto host = size_t(in.number<uint64_t>());
      if (host >= averages.size()) averages.resize(host + 1);
      averages[host].now = in.array<std::byte>();
      averages[host].before = in.array<std::byte>();
    }
  }
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
      learner.host = in.number<int32_t>();
    }
  }
  return learners;
}

}  // namespace

RunState gathered(Ranks& ranks, RunState mine) {
  const Ranks::Parts parts = ranks.gather("learners", packed(mine.learners));
  const Ranks::Parts averages = ranks.gather("averages", ranks.first() ? "" : packed(ranks, mine.averages));
  if (!ranks.first()) return mine;
  mine.learners = learners_of(parts);
  add_averages(averages, mine.averages);
  return mine;
}

RunState exchanged(Ranks& ranks, RunState mine) {
  mine.learners = learners_of(ranks.exchange("all learners", packed(mine.learners)));
  if (mine.averages.empty()) return mine;
  add_averages(ranks.exchange("all averages", packed(ranks, mine.averages)), mine.averages);
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
