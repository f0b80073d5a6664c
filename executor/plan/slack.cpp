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
std::vector<double> longest_ways(const Plan& plan, const std::vector<double>& lengths) {
  std::vector<double> ways(plan.tasks.size(), 0.0);
  for (size_t sweep = 0; sweep <= plan.tasks.size(); ++sweep) {
    bool changed = false;
    for (size_t id = 0; id < plan.edges.size(); ++id) {
      const Edge& edge = plan.edges[id];
      const double way = ways[size_t(edge.from)] + lengths[id];
      if (way <= ways[size_t(edge.to)] + 1e-9) continue;
      ways[size_t(edge.to)] = way;
      changed = true;
    }
    if (!changed) break;
  }
  return ways;
}

}  // namespace

Slack slack_of(const Plan& plan, const Cycle& critical) {
  Slack slack{std::vector<double>(plan.tasks.size(), kFar), std::vector<double>(plan.edges.size(), kFar)};
  if (critical.edges.empty()) return slack;
  const std::vector<ClockTimes::Lag> lags = ClockTimes(plan).edge_lags();
  double lag = 0;
  for (const EdgeId id : critical.edges) lag += lags[size_t(id)].most;
  const double bound = critical.microseconds / lag;

  std::vector<double> spare(plan.edges.size());  // by which each edge falls short of the longest way
  for (size_t id = 0; id < spare.size(); ++id) {
    spare[id] = plan.tasks[size_t(plan.edges[id].from)].microseconds - bound * lags[id].most;
  }
  const std::vector<double> ways = longest_ways(plan, spare);
  std::vector<std::vector<EdgeId>> out(plan.tasks.size()), into(plan.tasks.size());
  for (EdgeId id = 0; id < EdgeId(plan.edges.size()); ++id) {
    const Edge& edge = plan.edges[size_t(id)];
    spare[size_t(id)] = std::max(0.0, ways[size_t(edge.to)] - ways[size_t(edge.from)] - spare[size_t(id)]);
    out[size_t(edge.from)].push_back(id);
    into[size_t(edge.to)].push_back(id);
  }

  // The cycle with the least to spare through each edge u → v: the edge, and from v the shortest way back to u.
  using Step = std::pair<double, TaskId>;
  std::vector<double> reach(plan.tasks.size());
  for (TaskId start = 0; start < TaskId(plan.tasks.size()); ++start) {
    std::fill(reach.begin(), reach.end(), kFar);
    reach[size_t(start)] = 0;
    std::priority_queue<Step, std::vector<Step>, std::greater<>> next;
    next.push({0, start});
    while (!next.empty()) {
      const auto [distance, task] = next.top();
      next.pop();
      if (distance > reach[size_t(task)]) continue;
      for (const EdgeId id : out[size_t(task)]) {
        const TaskId to = plan.edges[size_t(id)].to;
        if (distance + spare[size_t(id)] >= reach[size_t(to)]) continue;
        reach[size_t(to)] = distance + spare[size_t(id)];
        next.push({reach[size_t(to)], to});
      }
    }
    for (const EdgeId id : into[size_t(start)]) {
      const double through = spare[size_t(id)] + reach[size_t(plan.edges[size_t(id)].from)];
      slack.edges[size_t(id)] = through;
      slack.tasks[size_t(start)] = std::min(slack.tasks[size_t(start)], through);
    }
  }
  return slack;
}

}  // namespace arbalest
