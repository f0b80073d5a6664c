#include "executor/trace/layer_times.h"

#include <algorithm>
#include <map>

namespace arbalest {

LayerNode layer_of(const std::string& node) {
  const size_t at = node.rfind(".grad");
  if (at == node.npos || at == 0) return {node, false};
  const size_t end = at + std::string_view(".grad").size();
  if (end < node.size() && node[end] != '_') return {node, false};
  return {node.substr(0, at), true};
}

std::vector<LayerTime> layer_times(const TraceFile& trace) {
  std::vector<LayerNode> layers;
  for (const std::string& name : trace.launches) layers.push_back(layer_of(name));
  std::map<std::string, LayerTime> times;
  for (const NodeSpan& node : trace.nodes) {
    const Task& task = trace.plan.tasks[size_t(node.task)];
    if (trace.plan.lanes[size_t(task.lane)].kind != Lane::Kind::Compute) continue;
    const LayerNode& layer = layers[size_t(node.launch)];
    LayerTime& time = times[layer.layer];
    (layer.gradient ? time.backward_ns : time.forward_ns) += node.ended - node.started;
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
