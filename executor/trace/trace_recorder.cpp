#include "executor/trace/trace_recorder.h"

#include <algorithm>

namespace arbalest {

TraceRecorder::TraceRecorder(const Plan& plan, size_t capacity_per_thread)
    : plan_(plan), capacity_(std::max<size_t>(1, capacity_per_thread)) {}

TraceFile TraceRecorder::collect() const {
  TraceFile trace;
  trace.plan.devices = plan_.devices;
  trace.plan.clocks = plan_.clocks;
  trace.plan.relations = plan_.relations;
  trace.plan.lanes = plan_.lanes;
  trace.plan.tasks = plan_.tasks;
  trace.plan.edges = plan_.edges;
  trace.plan.arenas = plan_.arenas;
  trace.threads = threads_;
  trace.reading = reading_;
  trace.alone = alone_;
  trace.timed = timed_;
  trace.sampling = sampling_;
  if (!plan_.graphs.empty()) trace.graph = plan_.graphs[0].name;
  for (const Launch& launch : plan_.launches) {
    const Graph& graph = plan_.graphs[size_t(launch.program)];
    trace.launches.push_back(graph.nodes[size_t(launch.node)].name);
  }
  int32_t thread = 0;
  for (const Rings& rings : rings_) {
    for (size_t i = 0; i < rings.tasks.size(); ++i) {
      const TaskSpan& span = rings.tasks.spans[i];
      if (span.started < 0 || span.ended < span.started) {
        ++trace.unfinished;
      } else {
        trace.tasks.push_back(span);
      }
    }
    trace.nodes.insert(trace.nodes.end(), rings.nodes.spans.begin(),
                       rings.nodes.spans.begin() + std::ptrdiff_t(rings.nodes.size()));
    for (size_t i = 0; i < rings.issues.size(); ++i) {
      trace.issues.push_back(rings.issues.spans[i]);
      trace.issues.back().thread = thread;
    }
    if (rings.issues.size() > 0) ++thread;
    trace.dropped += rings.tasks.dropped() + rings.nodes.dropped() + rings.issues.dropped();
  }
  const auto by_start = [](const auto& a, const auto& b) { return a.started < b.started; };
  std::stable_sort(trace.tasks.begin(), trace.tasks.end(), by_start);
  std::stable_sort(trace.nodes.begin(), trace.nodes.end(), by_start);
  std::stable_sort(trace.issues.begin(), trace.issues.end(), by_start);
  return trace;
}

}  // namespace arbalest
