// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/slack.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "executor/plan/clocks.h"

namespace arbalest {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();

// Longest ways that end at each task, where a way's length is its work less what the bound allows for its lag. At the
// critical bound no cycle is longer than 0, so that they exist.
Table<TaskId, double> longest_ways(const Plan& plan, const Table<EdgeId, double>& lengths) {
  Table<TaskId, double> ways(plan.tasks.size(), 0.0);
  for (size_t sweep = 0; sweep <= plan.tasks.size(); ++sweep) {
    bool changed = false;
    for (const EdgeId id : plan.edges.ids()) {
      const Edge& edge = plan.edges[id];
      const double way = ways[edge.from] + lengths[id];
      if (way <= ways[edge.to] + 1e-9) continue;
      ways[edge.to] = way;
      changed = true;
    }
    if (!changed) break;
  }
  return ways;
}

}  // namespace

Slack slack_of(const Plan& plan, const Cycle& critical) {
  Slack slack;
  slack.tasks.assign(plan.tasks.size(), kFar);
  slack.edges.assign(plan.edges.size(), kFar);
  if (critical.edges.empty()) return slack;
  const Table<EdgeId, ClockTimes::Lag> lags = ClockTimes(plan).edge_lags();
  double lag = 0;
  for (const EdgeId id : critical.edges) lag += lags[id].most;
  const double bound = critical.microseconds / lag;

  Table<EdgeId, double> spare(plan.edges.size());  // by which each edge falls short of the longest way
  for (const EdgeId id : spare.ids()) {
    spare[id] = plan.tasks[plan.edges[id].from].microseconds - bound * lags[id].most;
  }
  const Table<TaskId, double> ways = longest_ways(plan, spare);
  Table<TaskId, std::vector<EdgeId>> out(plan.tasks.size()), into(plan.tasks.size());
  for (const EdgeId id : plan.edges.ids()) {
    const Edge& edge = plan.edges[id];
    spare[id] = std::max(0.0, ways[edge.to] - ways[edge.from] - spare[id]);
    out[edge.from].push_back(id);
    into[edge.to].push_back(id);
  }

  // The cycle with the least to spare through each edge u → v: the edge, and from v the shortest way back to u.
  using Step = std::pair<double, TaskId>;
  Table<TaskId, double> reach(plan.tasks.size());
  for (const TaskId start : plan.tasks.ids()) {
    std::fill(reach.begin(), reach.end(), kFar);
    reach[start] = 0;
    std::priority_queue<Step, std::vector<Step>, std::greater<>> next;
    next.push({0, start});
    while (!next.empty()) {
      const auto [distance, task] = next.top();
      next.pop();
      if (distance > reach[task]) continue;
      for (const EdgeId id : out[task]) {
        const TaskId to = plan.edges[id].to;
        if (distance + spare[id] >= reach[to]) continue;
        reach[to] = distance + spare[id];
        next.push({reach[to], to});
      }
    }
    for (const EdgeId id : into[start]) {
      const double through = spare[id] + reach[plan.edges[id].from];
      slack.edges[id] = through;
      slack.tasks[start] = std::min(slack.tasks[start], through);
    }
  }
  return slack;
}

}  // namespace arbalest
