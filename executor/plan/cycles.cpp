// SPDX-License-Identifier: Apache-2.0

// Finds the cycle that costs most per base batch, which bounds a plan, and how far each edge lets its tasks drift
// apart.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "base/error.h"
#include "executor/plan/clocks.h"
#include "executor/plan/plan.h"

namespace arbalest {
namespace {

// The edges of a cycle whose weights sum to more than 0, in order, or none. Bellman-Ford: the parents of a graph with
// such a cycle come to hold one.
std::vector<EdgeId> positive_cycle(const Plan& plan, const Table<EdgeId, double>& weights) {
  Table<TaskId, double> reach(plan.tasks.size(), 0.0);
  Table<TaskId, EdgeId> parent(plan.tasks.size(), kNone);
  for (size_t sweep = 0; sweep <= plan.tasks.size(); ++sweep) {
    bool changed = false;
    for (const EdgeId id : plan.edges.ids()) {
      const Edge& edge = plan.edges[id];
      const double longer = reach[edge.from] + weights[id];
      if (longer <= reach[edge.to] + 1e-9 * (1 + std::abs(longer))) continue;
      reach[edge.to] = longer;
      parent[edge.to] = id;
      changed = true;
    }
    if (!changed) return {};
    Table<TaskId, TaskId> visit(plan.tasks.size(), kNone);  // the walk that came by
    for (const TaskId start : plan.tasks.ids()) {
      TaskId task = start;
      while (visit[task] == kNone && parent[task] != kNone) {
        visit[task] = start;
        task = plan.edges[parent[task]].from;
      }
      if (visit[task] != start) continue;
      std::vector<EdgeId> cycle;
      TaskId at = task;
      do {
        cycle.push_back(parent[at]);
        at = plan.edges[cycle.back()].from;
      } while (at != task);
      std::reverse(cycle.begin(), cycle.end());
      return cycle;
    }
  }
  return {};
}

// Whether the instance that the edge needs for n is one that 64 bits hold.
bool can_tell(const Plan& plan, const Edge& edge, int64_t n) {
  if (edge.relation == kNone) return true;
  const ClockRelation& relation = plan.relations[edge.relation];
  int64_t fine = 0;
  return !__builtin_mul_overflow(n / relation.groups_per_period() + 1, relation.period, &fine);
}

// How far a turn of the cycle reaches on average, in base batches. Every clock's pattern repeats, so the mean over many
// turns is the mean for ever, except for the rounding of one hyper-period. If numbers of instances grow beyond 64 bits,
// as of traces that were made up, the most.
double mean_lag(const Plan& plan, const ClockTimes& times, const std::vector<EdgeId>& cycle, double at_most) {
  const bool one_clock = std::all_of(cycle.begin(), cycle.end(), [&](EdgeId id) {
    return plan.edges[id].relation == kNone && plan.tasks[plan.edges[id].to].clock == 0;
  });
  if (one_clock) return at_most;
  constexpr int kTurns = 64;
  const ClockId clock = plan.tasks[plan.edges[cycle.back()].to].clock;
  if (!times.repeats(clock)) return at_most;
  int64_t tick = times.phases(clock);
  while (times.time(clock, tick) < (kTurns + 1) * at_most) {
    if (__builtin_mul_overflow(tick, int64_t{2}, &tick)) return at_most;
  }
  const double start = times.time(clock, tick);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (auto id = cycle.rbegin(); id != cycle.rend(); ++id) {
      const Edge& edge = plan.edges[*id];
      if (!can_tell(plan, edge, tick)) return at_most;
      tick = needed_instance(plan, edge, tick);
    }
  }
  return (start - times.time(clock, tick)) / kTurns;
}

// Least sums of the most that edges lag, from one task to several others.
class Reaches {
 public:
  Reaches(const Plan& plan, const Table<EdgeId, ClockTimes::Lag>& lags)
      : reach_(plan.tasks.size(), kFar), out_(plan.tasks.size()) {
    for (const EdgeId id : plan.edges.ids()) {
      out_[plan.edges[id].from].push_back({std::max(0.0, lags[id].most), plan.edges[id].to});
    }
  }

  void run(TaskId from, std::vector<TaskId> targets) {
    for (TaskId task : touched_) reach_[task] = kFar;
    touched_.clear();
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    size_t left = targets.size();
    std::priority_queue<Step, std::vector<Step>, std::greater<>> later;
    std::vector<TaskId> now;  // tasks at the present distance
    const auto meet = [&](double distance, TaskId task) {
      if (distance >= reach_[task]) return false;
      if (reach_[task] == kFar) touched_.push_back(task);
      reach_[task] = distance;
      return true;
    };
    meet(0, from);
    later.push({0, from});
    while (!later.empty() && left > 0) {
      const auto [distance, first] = later.top();
      later.pop();
      if (distance > reach_[first]) continue;
      now = {first};
      while (!now.empty()) {
        const TaskId task = now.back();
        now.pop_back();
        left -= std::binary_search(targets.begin(), targets.end(), task);
        for (const auto& [lag, to] : out_[task]) {
          if (!meet(distance + lag, to)) continue;
          if (lag == 0) {
            now.push_back(to);
          } else {
            later.push({distance + lag, to});
          }
        }
      }
    }
  }

  double to(TaskId task) const { return reach_[task]; }

  static constexpr double kFar = std::numeric_limits<double>::infinity();

 private:
  using Step = std::pair<double, TaskId>;
  Table<TaskId, double> reach_;
  Table<TaskId, std::vector<Step>> out_;
  std::vector<TaskId> touched_;
};

// The most instances of a clock that end within a stretch of time. They can lie between an ending of u and the instance
// of u that v's started instances need, or that its next one needs.
int64_t instances_within(const ClockTimes& times, const Clock& clock, ClockId id, double stretch) {
  constexpr double kExact = 1e-6;
  const int64_t phases = times.phases(id);
  if (phases == 0) return 0;
  const double turn = times.time(id, phases) - times.time(id, 0);
  int64_t most = 0, first = -phases * (1 + int64_t(std::ceil(stretch / turn)));
  for (int64_t n = 0; n < phases; ++n) {
    while (first < n && times.time(id, n) - times.time(id, first) > stretch + kExact) ++first;
    const bool whole = times.time(id, n) - times.time(id, first) > stretch - kExact;
    most = std::max(most, n - first + (whole ? 0 : 1));
  }
  return std::min(most, clock.ticks);
}

}  // namespace

Cycle critical_cycle(const Plan& plan) {
  const ClockTimes times(plan);
  const Table<EdgeId, ClockTimes::Lag> lags = times.edge_lags();
  Cycle critical;
  Table<EdgeId, double> weights(plan.edges.size());
  // Each round finds a cycle that beats the last bound, until none does.
  for (double bound = 0;;) {
    for (const EdgeId id : weights.ids()) {
      weights[id] = plan.tasks[plan.edges[id].from].microseconds - bound * lags[id].most;
    }
    const std::vector<EdgeId> cycle = positive_cycle(plan, weights);
    if (cycle.empty()) break;
    double microseconds = 0, lag = 0;
    for (EdgeId id : cycle) {
      microseconds += plan.tasks[plan.edges[id].from].microseconds;
      lag += lags[id].most;
    }
    if (lag <= 0) {
      throw GraphError(fmt::format("the plan cannot run: a cycle through '{}' has no lag",
                                   plan.tasks[plan.edges[cycle.front()].from].name));
    }
    if (microseconds / lag <= bound) break;
    bound = microseconds / lag;
    critical = {cycle, microseconds, lag};
  }
  if (!critical.edges.empty()) critical.lag = mean_lag(plan, times, critical.edges, critical.lag);
  return critical;
}

Table<EdgeId, int64_t> edge_leads(const Plan& plan) {
  const ClockTimes times(plan);
  const Table<EdgeId, ClockTimes::Lag> lags = times.edge_lags();
  Table<TaskId, std::vector<EdgeId>> in_edges(plan.tasks.size());
  for (const EdgeId id : plan.edges.ids()) in_edges[plan.edges[id].to].push_back(id);
  Table<EdgeId, int64_t> leads(plan.edges.size(), 0);
  Reaches reaches(plan, lags);
  for (const TaskId task : plan.tasks.ids()) {
    std::vector<TaskId> sources;
    for (EdgeId id : in_edges[task]) sources.push_back(plan.edges[id].from);
    reaches.run(task, sources);
    for (EdgeId id : in_edges[task]) {
      const Edge& edge = plan.edges[id];
      if (reaches.to(edge.from) == Reaches::kFar) {
        throw GraphError(fmt::format("edge '{}' → '{}' lies on no cycle: nothing bounds how far '{}' runs ahead",
                                     plan.tasks[edge.from].name, plan.tasks[task].name, plan.tasks[edge.from].name));
      }
      const ClockId clock = plan.tasks[edge.from].clock;
      const double stretch = reaches.to(edge.from) + lags[id].most;
      leads[id] = edge.from == edge.to ? edge.distance
                  : clock == 0         ? std::min(int64_t(std::ceil(stretch - 1e-6)), plan.clocks[0].ticks)
                                       : instances_within(times, plan.clocks[clock], clock, stretch);
    }
  }
  return leads;
}

}  // namespace arbalest
