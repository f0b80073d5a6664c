// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/whole_state.h"

#include <algorithm>
#include <iterator>
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

bool first_of_its_host(const Ranks& ranks) {
  for (int rank = 0; rank < ranks.rank(); ++rank) {
    if (ranks.host(rank) == ranks.host(ranks.rank())) return false;
  }
  return true;
}

// The averages of this rank's hosts, if it is the first rank of its host: the others have the same.
std::string packed(const Ranks& ranks, const std::vector<AverageState>& averages) {
  if (!first_of_its_host(ranks)) return "";
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

void put(PartWriter& out, const Cursor& cursor) {
  for (const int64_t number : {cursor.epoch, cursor.batch, cursor.iteration, cursor.images, cursor.validations}) {
    out.number(number);
  }
  out.number(cursor.rate_drops.value_or(-1));
}

Cursor cursor_of(PartReader& in) {
  Cursor cursor;
  for (int64_t* number : {&cursor.epoch, &cursor.batch, &cursor.iteration, &cursor.images, &cursor.validations}) {
    *number = in.number<int64_t>();
  }
  if (const auto drops = in.number<int64_t>(); drops >= 0) cursor.rate_drops = drops;
  return cursor;
}

void put(PartWriter& out, const StrategyOptions& strategy) {
  out.array(strategy.name);
  for (const int64_t number : {strategy.every, strategy.every_hosts, strategy.bucket_bytes}) out.number(number);
  for (const double number : {strategy.alpha, strategy.beta, strategy.momentum, strategy.growth}) out.number(number);
  out.number(strategy.follows_rate);
}

StrategyOptions strategy_of(PartReader& in) {
  StrategyOptions strategy;
  strategy.name = in.text();
  for (int64_t* number : {&strategy.every, &strategy.every_hosts, &strategy.bucket_bytes}) {
    *number = in.number<int64_t>();
  }
  for (double* number : {&strategy.alpha, &strategy.beta, &strategy.momentum, &strategy.growth}) {
    *number = in.number<double>();
  }
  strategy.follows_rate = in.number<bool>();
  return strategy;
}

// `frozen`: that of all, which one of them sends.
std::string packed(const LeftState& left, const std::vector<std::byte>& frozen) {
  PartWriter out;
  out.array(frozen);
  out.number(left.fresh);
  put(out, left.strategy);
  out.number(left.segment);
  out.number(left.averagings);
  out.number(left.meeting);
  put(out, left.next);
  out.array(left.iterations);
  out.number(left.run.apart);
  out.number(int64_t(left.run.averages.size()) - 1);  // the host whose average it is
  for (const AverageState& average : left.run.averages) {
    if (average.now.empty()) continue;
    out.array(average.now);
    out.array(average.before);
  }
  const MovingAverage& moving = left.run.moving_average;
  out.number(moving.decay);
  out.array(moving.weights);
  out.number(moving.updates);
  out.number(moving.within);
  out.array(packed(left.run.learners));
  return std::move(out.bytes);
}

LeftState left_of(const std::string& part) {
  PartReader in(part);
  LeftState left;
  left.run.frozen = in.array<std::byte>();
  left.fresh = in.number<int64_t>();
  left.strategy = strategy_of(in);
  left.segment = in.number<int64_t>();
  left.averagings = in.number<int64_t>();
  left.meeting = in.number<bool>();
  left.next = cursor_of(in);
  left.iterations = in.array<int64_t>();
  left.run.apart = left.run.unaveraged = in.number<int64_t>();
  left.run.averages.resize(size_t(in.number<int64_t>() + 1));
  if (!left.run.averages.empty()) {
    left.run.averages.back().now = in.array<std::byte>();
    left.run.averages.back().before = in.array<std::byte>();
  }
  MovingAverage& moving = left.run.moving_average;
  moving.decay = in.number<double>();
  moving.weights = in.array<std::byte>();
  moving.updates = in.number<int64_t>();
  moving.within = in.number<int64_t>();
  left.run.learners = learners_of({in.text()});
  return left;
}

// Learners start from the mean of the hosts' averages before their last ones.
void meet_anew(RunState& state) {
  for (AverageState& average : state.averages) average.now = average.before;
  state = with_hosts_met(std::move(state));
  for (LearnerState& learner : state.learners) {
    learner.weights = state.averages.front().now;
    learner.correction = 0;
  }
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

LeftState exchanged(Ranks& ranks, const LeftState& mine) {
  LeftState all;
  std::vector<std::pair<int64_t, int64_t>> seen;  // by host: segment and averagings of its average
  const auto order = [](const LeftState& left) { return std::pair(left.segment, left.averagings); };
  bool first = true;
  const std::vector<std::byte> frozen = ranks.first() ? mine.run.frozen : std::vector<std::byte>();
  for (const std::string& part : ranks.exchange("left", packed(mine, frozen))) {
    LeftState left = left_of(part);
    if (first) {
      all.run.frozen = std::move(left.run.frozen);
      all.strategy = left.strategy;
    }
    all.sources.insert(all.sources.end(), size_t(left.fresh), kNewLearner);
    for (size_t i = 0; i < left.run.learners.size(); ++i) all.sources.push_back(int64_t(all.run.learners.size() + i));
    if (first || order(left) > order(all)) {
      all.segment = left.segment;
      all.averagings = left.averagings;
      all.run.moving_average = std::move(left.run.moving_average);
    }
    if (first || left.next.iteration > all.next.iteration) all.next = left.next;
    first = false;
    all.meeting = all.meeting || left.meeting;
    all.run.apart = all.run.unaveraged = std::max(all.run.apart, left.run.apart);
    all.iterations.insert(all.iterations.end(), left.iterations.begin(), left.iterations.end());
    std::move(left.run.learners.begin(), left.run.learners.end(), std::back_inserter(all.run.learners));
    if (left.run.averages.empty()) continue;
    const size_t host = left.run.averages.size() - 1;
    if (host >= all.run.averages.size()) {
      all.run.averages.resize(host + 1);
      seen.resize(host + 1, {-1, -1});
    }
    if (order(left) <= seen[host]) continue;
    seen[host] = order(left);
    all.run.averages[host] = std::move(left.run.averages.back());
  }
  if (all.meeting && !all.run.averages.empty()) meet_anew(all.run);
  return all;
}

SegmentSnapshot completed(Ranks& ranks, SegmentSnapshot mine) {
  RunState& state = mine.state;
  std::vector<int64_t> updates;
  std::vector<int32_t> hosts;
  for (const LearnerState& learner : state.learners) {
    updates.push_back(learner.updates);
    hosts.push_back(learner.host);
  }
  PartWriter out;
  out.array(updates);
  out.array(hosts);
  for (const std::vector<double>& sums : mine.tallies) out.array(sums);
  std::vector<LearnerState> learners = std::exchange(state.learners, {});
  auto kept = std::exchange(mine.kept, {});
  mine.tallies.clear();
  const Ranks::Parts parts = ranks.exchange("snapshot", std::move(out.bytes));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    PartReader in(parts[size_t(rank)]);
    updates = in.array<int64_t>();
    hosts = in.array<int32_t>();
    for (size_t i = 0; i < std::min(updates.size(), hosts.size()); ++i) {
      LearnerState& learner = state.learners.emplace_back();
      auto& values = mine.kept.emplace_back();
      if (rank == ranks.rank()) {
        learner = std::move(learners[i]);
        values = std::move(kept[i]);
      }
      learner.updates = updates[i];
      learner.host = hosts[i];
    }
    while (!in.at_end()) mine.tallies.push_back(in.array<double>());
  }
  mine.first_learner = 0;
  if (ranks.first()) return mine;
  state.frozen.clear();
  state.moving_average.weights.clear();
  mine.model = {};
  for (size_t host = 0; host < state.averages.size(); ++host) {
    if (host == 0 || !first_of_its_host(ranks)) state.averages[host] = {};
  }
  return mine;
}

}  // namespace arbalest
