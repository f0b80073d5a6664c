// SPDX-License-Identifier: Apache-2.0

// The proof that a plan runs to its end. An instance (v, n) that waits for itself through edges makes the plan dead. So
// does one that waits for a later instance of its own task, since the needs of an edge never decrease with n. Two steps
// decide exactly:
//  1. A certificate: with each edge's least lag over all phases, every cycle has a positive lag. It is sound, and fast
//     for epochs of any length. It is not complete: least lags of different edges may belong to different phases.
//  2. If step 1 proves nothing, token counts are run through one hyper-period, after which the pattern of all clocks
//     repeats. That decides: shift a cycle of waiting instances down by hyper-periods until one of them lies in the
//     first, and it never starts there; and what the first hyper-period needs lies in the first hyper-period.

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "executor/plan/clocks.h"
#include "executor/plan/plan.h"

namespace arbalest {
namespace {

const std::string& name_of(const Plan& plan, TaskId task) {
  return plan.tasks[task].name;
}

int64_t ticks_of(const Plan& plan, TaskId task) {
  return plan.clocks[plan.tasks[task].clock].ticks;
}

std::string label(const Plan& plan, const Edge& edge) {
  const auto task = [&](TaskId id) {
    return plan.tasks.contains(id) ? fmt::format("'{}'", name_of(plan, id)) : fmt::format("task {}", int32_t(id));
  };
  return fmt::format("edge {} → {}{}", task(edge.from), task(edge.to),
                     edge.what.empty() ? "" : fmt::format(" ({})", edge.what));
}

void check_clocks(const Plan& plan) {
  for (const Clock& clock : plan.clocks) {
    if (clock.ticks < 0) throw GraphError(fmt::format("clock '{}' has {} ticks", clock.name, clock.ticks));
  }
  for (const ClockRelation& relation : plan.relations) {
    if (!plan.clocks.contains(relation.fine) || !plan.clocks.contains(relation.coarse) ||
        relation.fine == relation.coarse) {
      throw GraphError(fmt::format("a clock relation links clocks {} and {}; expected two different ones of {}",
                                   int32_t(relation.fine), int32_t(relation.coarse), plan.clocks.size()));
    }
    if (relation.group < 1 || relation.period < relation.group) {
      throw GraphError(fmt::format("clock '{}' groups {} ticks of '{}' with period {}; expected 1 ≤ group ≤ period",
                                   plan.clocks[relation.coarse].name, relation.group, plan.clocks[relation.fine].name,
                                   relation.period));
    }
  }
}

void check_tasks(const Plan& plan) {
  for (const Task& task : plan.tasks) {
    if (!plan.clocks.contains(task.clock) || !plan.lanes.contains(task.lane)) {
      throw GraphError(fmt::format("task '{}' has clock {} of {} and lane {} of {}", task.name, int32_t(task.clock),
                                   plan.clocks.size(), int32_t(task.lane), plan.lanes.size()));
    }
    if (task.width < 1 || task.width > kWidest) {
      throw GraphError(fmt::format("task '{}' has width {}; expected 1 to {}", task.name, task.width, kWidest));
    }
  }
}

void check_edge(const Plan& plan, const Edge& edge) {
  const auto fail = [&](const std::string& why) { throw GraphError(label(plan, edge) + " " + why); };
  if (!plan.tasks.contains(edge.from) || !plan.tasks.contains(edge.to)) fail("leads to no task");
  if (edge.distance < 0) fail(fmt::format("has the negative distance {}", edge.distance));
  if (edge.needs == Edge::Needs::Issued && (plan.on_host(edge.from) || plan.on_host(edge.to))) {
    fail("needs 'issued', but only device tasks are issued; expected 'done' from or to a host task");
  }
  const ClockId from = plan.tasks[edge.from].clock, to = plan.tasks[edge.to].clock;
  const std::string &from_name = plan.clocks[from].name, &to_name = plan.clocks[to].name;
  if (from == to) {
    if (edge.relation != kNone) fail(fmt::format("has a clock relation, though both tasks belong to '{}'", to_name));
  } else {
    if (!plan.relations.contains(edge.relation)) {
      fail(fmt::format("joins clocks '{}' and '{}' without a relation", from_name, to_name));
    }
    const ClockRelation& relation = plan.relations[edge.relation];
    if (!(relation.fine == from && relation.coarse == to) && !(relation.fine == to && relation.coarse == from)) {
      fail(fmt::format("joins clocks '{}' and '{}', but its relation links '{}' and '{}'", from_name, to_name,
                       plan.clocks[relation.fine].name, plan.clocks[relation.coarse].name));
    }
  }
  const int64_t last = ticks_of(plan, edge.to) - 1;
  if (last >= 0 && needed_instance(plan, edge, last) >= ticks_of(plan, edge.from)) {
    fail(fmt::format("cannot be met: instance {} of '{}' needs instance {} of '{}', whose clock '{}' has {} ticks",
                     last, name_of(plan, edge.to), needed_instance(plan, edge, last), name_of(plan, edge.from),
                     from_name, ticks_of(plan, edge.from)));
  }
}

// Tasks so ordered that edges of distance 0 within a clock lead forward; shorter than the tasks if such edges close
// a cycle.
std::vector<TaskId> forward_order(const Plan& plan, const Table<TaskId, std::vector<EdgeId>>& out_edges) {
  const auto forward = [](const Edge& edge) { return edge.distance == 0 && edge.relation == kNone; };
  Table<TaskId, int> missing(plan.tasks.size());
  for (const Edge& edge : plan.edges) missing[edge.to] += forward(edge);
  std::vector<TaskId> order;
  for (const TaskId task : plan.tasks.ids()) {
    if (missing[task] == 0) order.push_back(task);
  }
  for (size_t k = 0; k < order.size(); ++k) {
    for (EdgeId id : out_edges[order[k]]) {
      const Edge& edge = plan.edges[id];
      if (forward(edge) && --missing[edge.to] == 0) order.push_back(edge.to);
    }
  }
  return order;
}

// Step 1: no cycle of the least lags, each less a little, is negative.
bool has_certificate(const Plan& plan, const ClockTimes& times, const Table<TaskId, std::vector<EdgeId>>& out_edges) {
  constexpr int kSweeps = 64;  // in forward order a few suffice; a plan that needs more is left to step 2
  const std::vector<TaskId> order = forward_order(plan, out_edges);
  if (order.size() < plan.tasks.size()) return false;
  const Table<EdgeId, ClockTimes::Lag> lags = times.edge_lags();
  const double little = 1e-3 / double(plan.tasks.size() + 1);
  Table<TaskId, double> reach(plan.tasks.size(), 0.0);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool changed = false;
    for (TaskId task : order) {
      for (EdgeId id : out_edges[task]) {
        const double shorter = reach[task] + lags[id].least - little;
        double& there = reach[plan.edges[id].to];
        if (shorter < there - little / 2) {
          there = shorter;
          changed = true;
        }
      }
    }
    if (!changed) return true;
  }
  return false;
}

// Step 2: how many instances of each task start at all, up to the limits.
Table<TaskId, int64_t> run_counts(const Plan& plan, const Table<TaskId, int64_t>& limits,
                                  const Table<TaskId, std::vector<EdgeId>>& in_edges,
                                  const Table<TaskId, std::vector<EdgeId>>& out_edges) {
  Table<TaskId, int64_t> counts(plan.tasks.size(), 0);
  Table<TaskId, char> queued(plan.tasks.size(), 1);
  std::deque<TaskId> queue;
  for (const TaskId task : plan.tasks.ids()) queue.push_back(task);
  while (!queue.empty()) {
    const TaskId task = queue.front();
    queue.pop_front();
    queued[task] = 0;
    int64_t reached = limits[task];
    for (EdgeId id : in_edges[task]) {
      const Edge& edge = plan.edges[id];
      reached = std::min(reached, allowed_instances(plan, edge, counts[edge.from]));
    }
    if (reached <= counts[task]) continue;
    counts[task] = reached;
    for (EdgeId id : out_edges[task]) {
      const TaskId next = plan.edges[id].to;
      if (!queued[next]) queue.push_back(next);
      queued[next] = 1;
    }
  }
  return counts;
}

// Every task that is stuck waits for one that is stuck: walk back until a task comes a second time.
[[noreturn]] void name_dead_cycle(const Plan& plan, const Table<TaskId, int64_t>& counts, TaskId stuck,
                                  const Table<TaskId, std::vector<EdgeId>>& in_edges) {
  const auto blocking = [&](TaskId task) -> const Edge& {
    for (EdgeId id : in_edges[task]) {
      const Edge& edge = plan.edges[id];
      if (allowed_instances(plan, edge, counts[edge.from]) <= counts[task]) return edge;
    }
    throw GraphError(fmt::format("task '{}' cannot start, though no edge holds it", name_of(plan, task)));
  };
  Table<TaskId, int> seen(plan.tasks.size(), 0);
  TaskId task = stuck;
  while (++seen[task] < 2) task = blocking(task).from;
  std::string path = name_of(plan, task), reason;
  TaskId at = task;
  do {
    const Edge& edge = blocking(at);
    path = name_of(plan, edge.from) + " → " + path;
    reason += fmt::format("{}instance {} of '{}' needs instance {} of '{}'{}", reason.empty() ? "" : "; ", counts[at],
                          name_of(plan, at), needed_instance(plan, edge, counts[at]), name_of(plan, edge.from),
                          edge.what.empty() ? "" : fmt::format(" ({})", edge.what));
    at = edge.from;
  } while (at != task);
  throw GraphError(fmt::format("the plan cannot run to its end: the cycle {} has no lag: {}", path, reason));
}

}  // namespace

const LoopPlan* PlanHandles::find(LoopRole role) const {
  const auto found = std::find_if(loops.begin(), loops.end(), [&](const LoopPlan& loop) { return loop.role == role; });
  return found == loops.end() ? nullptr : &*found;
}

std::string to_string(const PlanDevice& device) {
  return fmt::format("{}{}{}:{}", device.host, device.host.empty() ? "" : "/",
                     device.kind == PlanDevice::Kind::Cpu ? "cpu" : "cuda", device.index);
}

int64_t allowed_instances(const Plan& plan, const Edge& edge, int64_t completed) {
  const int64_t reach = completed + edge.distance;
  if (edge.relation == kNone) return reach;
  const ClockRelation& relation = plan.relations[edge.relation];
  if (plan.tasks[edge.from].clock == relation.fine) return relation.coarse_of(reach);
  return reach == 0 ? 0 : relation.last_of(reach - 1) + 1;
}

void verify(const Plan& plan) {
  check_clocks(plan);
  check_tasks(plan);
  for (const Edge& edge : plan.edges) check_edge(plan, edge);

  Table<TaskId, std::vector<EdgeId>> in_edges(plan.tasks.size()), out_edges(plan.tasks.size());
  for (const EdgeId id : plan.edges.ids()) {
    in_edges[plan.edges[id].to].push_back(id);
    out_edges[plan.edges[id].from].push_back(id);
  }
  const ClockTimes times(plan);
  if (has_certificate(plan, times, out_edges)) return;

  Table<TaskId, int64_t> limits;
  for (const Task& task : plan.tasks) limits.push_back(times.phases(task.clock));
  const Table<TaskId, int64_t> counts = run_counts(plan, limits, in_edges, out_edges);
  for (const TaskId task : plan.tasks.ids()) {
    if (counts[task] < limits[task]) name_dead_cycle(plan, counts, task, in_edges);
  }
}

}  // namespace arbalest
