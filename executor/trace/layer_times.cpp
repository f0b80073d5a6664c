// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/layer_times.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace arbalest {

LayerNode layer_of(const std::string& node) {
  constexpr std::string_view kAgain = " again";  // passes/recompute.h
  if (node.ends_with(kAgain) && node.size() > kAgain.size()) return {node.substr(0, node.size() - kAgain.size()), true};
  const size_t at = node.rfind(".grad");
  if (at == node.npos || at == 0) return {node, false};
  const size_t end = at + std::string_view(".grad").size();
  if (end < node.size() && node[end] != '_') return {node, false};
  return {node.substr(0, at), true};
}

Table<TaskId, std::vector<NodeShare>> node_shares(const TraceFile& trace) {
  const size_t tasks = trace.plan.tasks.size();
  Table<TaskId, std::vector<NodeShare>> shares(tasks);  // ns at first
  Table<TaskId, double> whole(tasks, 0);
  Table<TaskId, std::map<int32_t, size_t>> places(tasks);  // by launch
  const auto add = [&](TaskId task, int32_t launch, int64_t ns) {
    std::vector<NodeShare>& nodes = shares[task];
    const auto [place, first] = places[task].try_emplace(launch, nodes.size());
    if (first) nodes.push_back({launch, 0});
    nodes[place->second].share += double(ns);
  };
  // The oldest spans may be gone: a task's time counts from the first instance of which nodes are left.
  Table<TaskId, int64_t> since(tasks, INT64_MAX);
  for (const NodeSpan& node : trace.nodes) {
    add(node.task, node.launch, node.ended - node.started);
    since[node.task] = std::min(since[node.task], node.instance);
  }
  for (const TaskSpan& span : trace.tasks) {
    if (span.instance >= since[span.task]) whole[span.task] += double(span.ended - span.started);
  }
  for (const NodeTime& node : trace.timed) {
    if (since[node.task] != INT64_MAX) continue;
    add(node.task, node.launch, node.ns);
    whole[node.task] += double(node.ns);
  }
  for (const TaskId task : shares.ids()) {
    for (NodeShare& node : shares[task]) node.share = whole[task] > 0 ? node.share / whole[task] : 0;
  }
  return shares;
}

std::vector<LayerTime> layer_times(const TraceFile& trace) {
  std::vector<LayerNode> layers;
  for (const std::string& name : trace.launches) layers.push_back(layer_of(name));
  Table<TaskId, int64_t> total(trace.plan.tasks.size(), 0);
  for (const TaskSpan& span : trace.tasks) total[span.task] += span.ended - span.started;
  const Table<TaskId, std::vector<NodeShare>> shares = node_shares(trace);
  std::map<std::string, LayerTime> times;
  for (const TaskId task : shares.ids()) {
    if (trace.plan.lanes[trace.plan.tasks[task].lane].kind != Lane::Kind::Compute) continue;
    for (const NodeShare& node : shares[task]) {
      const LayerNode& layer = layers[size_t(node.launch)];
      LayerTime& time = times[layer.layer];
      if (!trace.operators.empty() && (time.of.empty() || !layer.gradient)) {
        time.of = trace.operators[size_t(node.launch)];
      }
      (layer.gradient ? time.backward_ns : time.forward_ns) += std::llround(node.share * double(total[task]));
    }
  }
  std::vector<LayerTime> list;
  for (auto& [name, time] : times) {
    time.name = name;
    list.push_back(time);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const LayerTime& a, const LayerTime& b) { return a.total_ns() > b.total_ns(); });
  return list;
}

}  // namespace arbalest
