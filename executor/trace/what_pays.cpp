// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/what_pays.h"

#include <fmt/format.h>
#include <tbb/parallel_for_each.h>

#include <algorithm>
#include <map>

#include "executor/trace/simulate.h"
#include "executor/trace/steady_state.h"
#include "executor/trace/trace_summary.h"
#include "executor/trace/what_if.h"

namespace arbalest {
namespace {

constexpr int64_t kLeastIterations = 5;     // of the steady state
constexpr int64_t kMostInstances = 60'000;  // of a simulation: long enough for any pattern, and there are many of them

// Groups the tasks that ran by kind: tasks that differ in device and learner alone change together.
std::map<std::string, std::vector<TaskId>> kinds_of_tasks(const TraceFile& trace) {
  Table<TaskId, char> runs(trace.plan.tasks.size(), 0);
  for (const TaskSpan& span : trace.tasks) runs[span.task] = 1;
  std::map<std::string, std::vector<TaskId>> kinds;
  for (const TaskId task : trace.plan.tasks.ids()) {
    if (runs[task]) kinds[kind_of(trace.plan.tasks[task])].push_back(task);
  }
  return kinds;
}

// Groups the edges that say that a slot is free again. The key is the content of the slot, the number of slots and the
// kind of the task that waits for one.
std::map<std::string, std::vector<EdgeId>> kinds_of_slots(const Plan& plan) {
  std::map<std::string, std::vector<EdgeId>> kinds;
  for (const EdgeId id : plan.edges.ids()) {
    const Edge& edge = plan.edges[id];
    if (edge.why != Edge::Why::Reuse || edge.distance < 1) continue;
    const std::string to = kind_of(plan.tasks[edge.to]);
    kinds[fmt::format("{}, {} slots for {}", edge.what, edge.distance, to)].push_back(id);
  }
  return kinds;
}

// Adds slots; a task that fills batches has as many as may be made ahead.
void set_slots(Plan& plan, const std::vector<EdgeId>& edges, int64_t by) {
  for (const EdgeId id : edges) {
    Edge& edge = plan.edges[id];
    if (plan.tasks[edge.to].kind == Task::Kind::Fill) {
      set_depth(plan, edge, depth_of(plan, edge) + by);
    } else {
      edge.distance += by;
    }
  }
}

// The costliest layers: each costs a simulation, and what takes little saves little.
void add_layers(const TraceFile& trace, const Costs& costs, std::vector<Payoff>& changes) {
  constexpr size_t kMostLayers = 12;
  const std::vector<LayerTime> layers = layer_times(trace);
  for (size_t i = 0; i < std::min(layers.size(), kMostLayers); ++i) {
    Payoff change{Payoff::Kind::LayerHalved, layers[i].name + " twice as fast", {}, layers[i].name, {}};
    for (const TaskId task : costs.tasks.ids()) {
      const std::vector<NodeShare>& nodes = costs.tasks[task].nodes;
      const bool has = std::any_of(nodes.begin(), nodes.end(), [&](const NodeShare& node) {
        return layer_of(costs.launches[size_t(node.launch)]).layer == change.layer;
      });
      if (has) change.tasks.push_back(task);
    }
    changes.push_back(std::move(change));
  }
}

std::vector<Payoff> changes_of(const TraceFile& trace, const Costs& costs) {
  std::vector<Payoff> changes;
  for (const auto& [name, tasks] : kinds_of_tasks(trace)) {
    changes.push_back({Payoff::Kind::Halved, name + " twice as fast", tasks, "", {}});
    changes.push_back({Payoff::Kind::Removed, name + " for nothing", tasks, "", {}});
  }
  add_layers(trace, costs, changes);
  const Plan& plan = trace.plan;
  for (const auto& [name, edges] : kinds_of_slots(plan)) {
    const Edge& first = plan.edges[edges[0]];
    const std::string what = first.what.empty() ? "slots" : first.what;
    const std::string of = kind_of(plan.tasks[first.to]);
    std::vector<TaskId> tasks;
    for (const EdgeId id : edges) tasks.push_back(plan.edges[id].to);
    const Task& to = plan.tasks[first.to];
    const bool fill = to.kind == Task::Kind::Fill;
    const int64_t now = fill ? depth_of(plan, first) : first.distance;
    const auto text = [&](int64_t slots) {
      if (fill && to.learner != kNone) return fmt::format("prefetch.depth: {} instead of {}", slots, now);
      return fmt::format("{} of {}: {} slot{} instead of {}", what, of, slots, slots == 1 ? "" : "s", now);
    };
    changes.push_back({Payoff::Kind::SlotMore, text(now + 1), tasks, "", edges});
    if (fill && now > 1) {
      changes.push_back({Payoff::Kind::SlotLess, text(now - 1), tasks, "", edges});
    }
  }
  return changes;
}

void scale_layer(const Payoff& change, Costs& costs) {
  std::vector<char> meant;
  for (const std::string& node : costs.launches) meant.push_back(layer_of(node).layer == change.layer ? 1 : 0);
  scale_nodes(costs, meant, 0.5);
}

// The run again, but that what was recorded is replayed from another instance on: were the simulation exact, it would
// take as long.
Scenario begun_later(const Scenario& measured, int64_t instances) {
  Scenario later = measured;
  for (TaskCosts& task : later.costs.tasks) {
    task.duration.begin_later(instances);
    task.dispatch.begin_later(instances);
  }
  return later;
}

void apply(const Payoff& change, Scenario& scenario) {
  switch (change.kind) {
    case Payoff::Kind::Halved:
    case Payoff::Kind::Removed:
      for (const TaskId task : change.tasks) {
        scenario.costs.tasks[task].duration.scale(change.kind == Payoff::Kind::Halved ? 0.5 : 0);
      }
      break;
    case Payoff::Kind::LayerHalved: scale_layer(change, scenario.costs); break;
    case Payoff::Kind::SlotMore: set_slots(scenario.plan, change.edges, 1); break;
    case Payoff::Kind::SlotLess: set_slots(scenario.plan, change.edges, -1); break;
  }
}

}  // namespace

WhatPays what_pays(const TraceFile& trace) {
  WhatPays pays;
  const SteadyState steady = find_steady_state(trace.plan, trace.tasks, SummaryOptions{}.warm_up);
  const int64_t recorded = steady.last - steady.first + 1;
  if (recorded < kLeastIterations || steady.iteration_ns <= 0) return pays;
  verify(trace.plan);
  const Scenario measured{trace.plan, measure_costs(trace, steady)};
  const auto tasks = int64_t(trace.plan.tasks.size());
  pays.iterations = std::max<int64_t>(20, std::min(recorded, kMostInstances / std::max<int64_t>(1, tasks)));
  SimulationOptions options;
  options.iterations = pays.iterations;
  options.warm_up = SummaryOptions{}.warm_up;
  const auto iteration_of = [&](const Scenario& scenario) {
    return simulate(scenario.plan, scenario.costs, options).steady.iteration_ns;
  };
  pays.simulated_ns = iteration_of(measured);
  if (pays.simulated_ns <= 0) return pays;
  pays.measured_ns = steady.iteration_ns;
  for (const int64_t instances : {1, 2, 3, 5, 8}) {
    const double again = iteration_of(begun_later(measured, instances));
    pays.spread = std::max(pays.spread, std::abs(again / pays.simulated_ns - 1));
  }
  pays.changes = changes_of(trace, measured.costs);
  tbb::parallel_for_each(pays.changes, [&](Payoff& change) {
    Scenario changed = measured;
    apply(change, changed);
    change.iteration_ns = iteration_of(changed);
    change.saved = 1 - change.iteration_ns / pays.simulated_ns;
  });
  std::stable_sort(pays.changes.begin(), pays.changes.end(),
                   [](const Payoff& a, const Payoff& b) { return a.saved > b.saved; });
  return pays;
}

}  // namespace arbalest
