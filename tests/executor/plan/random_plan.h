// SPDX-License-Identifier: Apache-2.0
#pragma once
// Random cyclic plans with several clocks, and the definition of an edge spelled out tick by tick: what tests check the
// proofs and the dependency engine against. Nothing here uses the formulas of executor/plan/plan.h.

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/plan/plan.h"

namespace arbalest::test {

// One instance of a task.
struct Instance {
  TaskId task = kNone;
  int64_t instance = 0;
};

inline bool is_live(const Plan& plan) {
  try {
    verify(plan);
    return true;
  } catch (const GraphError&) {
    return false;
  }
}

inline int pick(std::mt19937& random, int from, int to) {
  return std::uniform_int_distribution<int>(from, to)(random);
}

inline TaskId add_task(Plan& plan, const std::string& name, ClockId clock, bool host, int width = 1) {
  Task task;
  task.name = name;
  task.clock = clock;
  task.lane = LaneId(host ? 0 : 1);
  task.width = width;
  return plan.tasks.push_back(task);
}

inline void add_edge(Plan& plan, TaskId from, TaskId to, int64_t distance, RelationId relation = kNone,
                     Edge::Needs needs = Edge::Needs::Done) {
  Edge edge;
  edge.from = from;
  edge.to = to;
  edge.distance = distance;
  edge.relation = relation;
  edge.needs = needs;
  plan.edges.push_back(edge);
}

// A plan without tasks: batches only, a host lane (0) and a device lane (1).
inline Plan empty_plan(int64_t batches) {
  Plan plan;
  plan.clocks = {{"batch", batches}};
  plan.lanes.resize(2);
  plan.lanes[1].kind = Lane::Kind::Compute;
  plan.lanes[1].device = 0;
  plan.devices.resize(1);
  return plan;
}

inline RelationId relation_between(const Plan& plan, TaskId a, TaskId b) {
  const ClockId x = plan.tasks[a].clock, y = plan.tasks[b].clock;
  for (const RelationId id : plan.relations.ids()) {
    const ClockRelation& relation = plan.relations[id];
    if ((relation.fine == x && relation.coarse == y) || (relation.fine == y && relation.coarse == x)) return id;
  }
  return kNone;
}

// Clocks: batch; epoch; validation batch under epoch; sync, cut short by the end of an epoch; and sync within epoch.
inline Plan random_plan(std::mt19937& random) {
  const int epochs = pick(random, 1, 5), batches = pick(random, 1, 7), validation = pick(random, 1, 5);
  const int sync = pick(random, 1, batches), syncs = (batches + sync - 1) / sync;
  Plan plan = empty_plan(int64_t(epochs) * batches);
  plan.clocks.push_back({"epoch", epochs});
  plan.clocks.push_back({"validation batch", int64_t(epochs) * validation});
  plan.clocks.push_back({"sync", int64_t(epochs) * syncs});
  plan.relations = {
      {0, 1, batches, batches}, {2, 1, validation, validation}, {0, 3, sync, batches}, {3, 1, syncs, syncs}};
  const int tasks = pick(random, 2, 9);
  for (int k = 0; k < tasks; ++k) {
    const bool host = pick(random, 0, 1) == 0;
    const auto clock = ClockId(pick(random, 0, 1) == 0 ? 0 : pick(random, 0, 3));
    add_task(plan, fmt::format("t{}", k), clock, host, host && pick(random, 0, 1) ? pick(random, 2, 5) : 1);
  }
  const int edges = pick(random, tasks, 3 * tasks);
  for (int k = 0; k < edges; ++k) {
    const auto from = TaskId(pick(random, 0, tasks - 1)), to = TaskId(pick(random, 0, tasks - 1));
    const RelationId relation = relation_between(plan, from, to);
    if (relation == kNone && plan.tasks[from].clock != plan.tasks[to].clock) continue;
    const int64_t distance = from < to ? pick(random, 0, 2) / 2 : pick(random, 0, 9) == 0 ? 0 : pick(random, 1, 4);
    const bool issued = !plan.on_host(from) && !plan.on_host(to) && pick(random, 0, 1) == 0;
    add_edge(plan, from, to, distance, relation, issued ? Edge::Needs::Issued : Edge::Needs::Done);
  }
  return plan;
}

// Which instance an edge needs, from tables filled by counting.
class Definition {
 public:
  explicit Definition(const Plan& plan) : plan_(plan) {
    for (const ClockRelation& relation : plan.relations) {
      Groups groups;
      const int64_t ticks = plan.clocks[relation.fine].ticks;
      int64_t group = 0, in_group = 0, in_period = 0;
      for (int64_t tick = 0; tick < ticks + relation.period; ++tick) {
        groups.of.push_back(group);
        if (int64_t(groups.last.size()) <= group) groups.last.push_back(tick);
        groups.last[size_t(group)] = tick;
        const bool period_ends = ++in_period == relation.period;
        if (++in_group == relation.group || period_ends) {
          ++group;
          in_group = 0;
        }
        if (period_ends) in_period = 0;
      }
      groups_.push_back(groups);
    }
  }

  int64_t needs(const Edge& edge, int64_t n) const {
    if (edge.relation == kNone) return n - edge.distance;
    const ClockRelation& relation = plan_.relations[edge.relation];
    const Groups& groups = groups_[edge.relation];
    const bool from_fine = plan_.tasks[edge.from].clock == relation.fine;
    return (from_fine ? groups.last.at(size_t(n)) : groups.of.at(size_t(n))) - edge.distance;
  }

  // Runs tasks in order, each as far as it gets, until nothing moves: whether all reach their ticks.
  bool runs_to_the_end() const {
    Table<TaskId, int64_t> counts(plan_.tasks.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (const TaskId task : counts.ids()) {
        while (counts[task] < ticks(task) && free(task, counts)) {
          ++counts[task];
          moved = true;
        }
      }
    }
    for (const TaskId task : counts.ids()) {
      if (counts[task] < ticks(task)) return false;
    }
    return true;
  }

  int64_t ticks(TaskId task) const { return plan_.clocks[plan_.tasks[task].clock].ticks; }

 private:
  struct Groups {
    std::vector<int64_t> of, last;
  };

  bool free(TaskId task, const Table<TaskId, int64_t>& counts) const {
    for (const Edge& edge : plan_.edges) {
      if (edge.to == task && needs(edge, counts[task]) >= counts[edge.from]) return false;
    }
    return true;
  }

  const Plan& plan_;
  Table<RelationId, Groups> groups_;
};

}  // namespace arbalest::test
