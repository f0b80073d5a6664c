// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/trace_recorder.h"

#include <algorithm>

#include "graph/op.h"

namespace arbalest {
namespace {

bool on_gpu(const Plan& plan, TaskId task) {
  if (plan.on_host(task)) return false;
  const int32_t device = plan.tasks[task].device;  // kNone: a collective of all devices, which are alike
  return plan.devices[device == kNone ? 0 : size_t(device)].kind == PlanDevice::Kind::Cuda;
}

// GPUs tell when an instance has ended; `started` is when it had been issued. It started once, besides, what came
// before it in its lane and what its lane waited for had ended.
void find_starts_on_gpus(TraceFile& trace) {
  const Plan& plan = trace.plan;
  Table<TaskId, std::vector<const Edge*>> waits(plan.tasks.size());
  for (const Edge& edge : plan.edges) {
    if (edge.needs == Edge::Needs::Issued && edge.from != edge.to) waits[edge.to].push_back(&edge);
  }
  Table<LaneId, std::vector<TaskSpan*>> lanes(plan.lanes.size());
  for (TaskSpan& span : trace.tasks) {
    if (on_gpu(plan, span.task)) lanes[plan.tasks[span.task].lane].push_back(&span);
  }
  const SpanIndex index(trace);
  for (std::vector<TaskSpan*>& lane : lanes) {
    std::sort(lane.begin(), lane.end(), [](const TaskSpan* a, const TaskSpan* b) { return a->ended < b->ended; });
    int64_t before = -1;
    for (TaskSpan* span : lane) {
      span->started = std::max(span->started, before);
      before = span->ended;
      for (const Edge* edge : waits[span->task]) {
        const int64_t needed = needed_instance(plan, *edge, span->instance);
        const TaskSpan* from = needed < 0 ? nullptr : index.find(edge->from, needed);
        if (from) span->started = std::max(span->started, from->ended);
      }
      span->started = std::min(span->started, span->ended);  // clocks differ by microseconds
    }
  }
}

}  // namespace

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
  trace.run = run_;
  if (!plan_.graphs.empty()) trace.graph = plan_.graphs[0].name;
  for (const Launch& launch : plan_.launches) {
    const Graph& graph = plan_.graphs[size_t(launch.program)];
    const Node& node = graph.nodes[launch.node];
    trace.launches.push_back(node.name);
    trace.operators.push_back(node.op->qualified_name());
  }
  int32_t thread = 0;
  for (const Rings& rings : rings_) {
    for (size_t i = 0; i < rings.tasks.size(); ++i) {
      const TaskSpan& span = rings.tasks.spans[i];
      if (span.started < 0 || span.ended < 0) {
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
  find_starts_on_gpus(trace);
  sort_by_start(trace);
  return trace;
}

}  // namespace arbalest
