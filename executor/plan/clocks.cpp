// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/clocks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

namespace arbalest {
namespace {

constexpr int64_t kLongestPattern = int64_t{1}
                                    << 22;  // ticks; longer ones are looked at tick by tick, to the end of the run

struct Ratio {
  __int128 over = 0, under = 1;  // over = 0: not known yet
};

__int128 greatest_divisor(__int128 a, __int128 b) {
  return b == 0 ? a : greatest_divisor(b, a % b);
}

Ratio reduced(__int128 over, __int128 under) {
  const __int128 divisor = greatest_divisor(over, under);
  return {over / divisor, under / divisor};
}

// Ticks of each clock while clock `root` makes one, along the relations; false if relations contradict each other or
// the numbers grow beyond use.
bool find_ratios(const Plan& plan, ClockId root, Table<ClockId, Ratio>& ratios, std::vector<ClockId>& members) {
  ratios[root] = {1, 1};
  members = {root};
  bool sound = true;
  for (size_t k = 0; k < members.size(); ++k) {
    for (const ClockRelation& relation : plan.relations) {
      if (relation.fine != members[k] && relation.coarse != members[k]) continue;
      const bool down = relation.coarse == members[k];
      const ClockId other = down ? relation.fine : relation.coarse;
      const Ratio& here = ratios[members[k]];
      const int64_t groups = relation.groups_per_period();
      const Ratio there =
          reduced(here.over * (down ? relation.period : groups), here.under * (down ? groups : relation.period));
      if (there.over > kLongestPattern || there.under > kLongestPattern) sound = false;
      Ratio& known = ratios[other];
      if (known.over != 0) {
        sound = sound && known.over == there.over && known.under == there.under;
      } else {
        known = sound ? there : Ratio{1, 1};
        members.push_back(other);
      }
    }
  }
  return sound;
}

}  // namespace

int64_t needed_instance(const Plan& plan, const Edge& edge, int64_t n) {
  if (edge.relation == kNone) return n - edge.distance;
  const ClockRelation& relation = plan.relations[edge.relation];
  const bool from_fine = plan.tasks[edge.from].clock == relation.fine;
  return (from_fine ? relation.last_of(n) : relation.coarse_of(n)) - edge.distance;
}

ClockTimes::ClockTimes(const Plan& plan) : plan_(plan), lines_(plan.clocks.size()) {
  find_periods();
  for (const ClockId root : lines_.ids()) {
    Line& line = lines_[root];
    if (line.placed) continue;
    line.placed = true;
    line.time.resize(size_t(line.period));
    std::iota(line.time.begin(), line.time.end(), 0.0);
    line.span = double(line.period);
    std::vector<ClockId> frontier = {root};
    for (size_t k = 0; k < frontier.size(); ++k) place_neighbours(frontier[k], frontier);
  }
}

void ClockTimes::find_periods() {
  Table<ClockId, Ratio> ratios(lines_.size());
  for (const ClockId root : lines_.ids()) {
    if (lines_[root].period != 0) continue;
    std::vector<ClockId> members;
    bool repeats = find_ratios(plan_, root, ratios, members);
    __int128 turns = 1;  // ticks of the root until every period of every relation has come to its end
    const auto lengthen = [&](const Ratio& ratio) {
      if (repeats) turns = turns / greatest_divisor(turns, ratio.under) * ratio.under;
      repeats = repeats && turns <= kLongestPattern;
    };
    for (ClockId clock : members) {
      lengthen(ratios[clock]);
      for (const ClockRelation& relation : plan_.relations) {
        if (relation.fine != clock) continue;
        lengthen(reduced(ratios[clock].over, ratios[clock].under * relation.period));
      }
    }
    const auto period_of = [&](ClockId clock) { return turns * ratios[clock].over / ratios[clock].under; };
    for (ClockId clock : members) repeats = repeats && period_of(clock) <= kLongestPattern;
    for (ClockId clock : members) {
      Line& line = lines_[clock];
      line.repeats = repeats;
      line.period = repeats ? int64_t(period_of(clock)) : std::max<int64_t>(1, plan_.clocks[clock].ticks);
    }
  }
}

// Any monotone placing gives sound lags; this one makes those of an edge from a fine clock to a coarse one exact.
void ClockTimes::place_neighbours(ClockId clock, std::vector<ClockId>& frontier) {
  for (const ClockRelation& relation : plan_.relations) {
    if (relation.fine != clock && relation.coarse != clock) continue;
    const bool down = relation.coarse == clock;
    const ClockId other = down ? relation.fine : relation.coarse;
    Line& line = lines_[other];
    if (line.placed) continue;
    line.placed = true;
    line.span = lines_[clock].span;
    line.time.resize(size_t(line.period));
    for (int64_t tick = 0; tick < line.period; ++tick) {
      double& at = line.time[size_t(tick)];
      if (!down) {
        at = time(clock, relation.last_of(tick));
        continue;
      }
      const int64_t group = relation.coarse_of(tick), last = relation.last_of(group);
      const int64_t before = group == 0 ? -1 : relation.last_of(group - 1);
      const double start = time(clock, group - 1), end = time(clock, group);
      at = tick == last ? end : start + (end - start) * double(tick - before) / double(last - before);
    }
    frontier.push_back(other);
  }
}

int64_t ClockTimes::phases(ClockId clock) const {
  return std::min(lines_[clock].period, plan_.clocks[clock].ticks);
}

double ClockTimes::time(ClockId clock, int64_t tick) const {
  const Line& line = lines_[clock];
  if (tick >= 0 && tick < line.period) return line.time[size_t(tick)];
  if (!line.repeats)
    return tick < 0 ? line.time.front() + double(tick) : line.time.back() + double(tick - line.period + 1);
  const int64_t turn = tick >= 0 ? tick / line.period : -((-tick + line.period - 1) / line.period);
  return line.time[size_t(tick - turn * line.period)] + double(turn) * line.span;
}

ClockTimes::Lag ClockTimes::lag_of(const Edge& edge) const {
  const ClockId from = plan_.tasks[edge.from].clock, to = plan_.tasks[edge.to].clock;
  Lag lag{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (int64_t n = 0; n < std::max<int64_t>(1, phases(to)); ++n) {
    const double here = time(to, n) - time(from, needed_instance(plan_, edge, n));
    lag.least = std::min(lag.least, here);
    lag.most = std::max(lag.most, here);
  }
  return lag;
}

Table<EdgeId, ClockTimes::Lag> ClockTimes::edge_lags() const {
  std::map<std::tuple<ClockId, ClockId, RelationId, int64_t>, Lag> known;  // plans have few kinds of edges
  Table<EdgeId, Lag> lags;
  lags.reserve(plan_.edges.size());
  for (const Edge& edge : plan_.edges) {
    const ClockId from = plan_.tasks[edge.from].clock, to = plan_.tasks[edge.to].clock;
    const auto [found, added] = known.try_emplace({from, to, edge.relation, edge.distance});
    if (added) found->second = lag_of(edge);
    lags.push_back(found->second);
  }
  return lags;
}

}  // namespace arbalest
