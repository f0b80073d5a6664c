// SPDX-License-Identifier: Apache-2.0
#include "executor/training/rank_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "executor/trace/trace_record.h"
#include "executor/world/part.h"

namespace arbalest {
namespace {

// The numbers in the joined trace at which a rank's devices, lanes, tasks, launches and issuing threads begin.
struct Offsets {
  int32_t devices, lanes, tasks, launches, threads;
};

int32_t threads_of(const TraceFile& trace) {
  int32_t threads = 0;
  for (const IssueSpan& span : trace.issues) threads = std::max(threads, span.thread + 1);
  return threads;
}

template <typename List, typename Change>
void append(List& to, List items, const Change& change) {
  for (auto& item : items) {
    change(item);
    to.push_back(std::move(item));
  }
}

void add_plan(Plan& to, Plan& plan, const Offsets& at) {
  const auto moved = [&](int32_t device) { return device == kNone ? kNone : device + at.devices; };
  const std::string owner = plan.devices.front().host + "/";
  append(to.devices, std::move(plan.devices), [](PlanDevice&) {});
  append(to.lanes, std::move(plan.lanes), [&](Lane& lane) {
    if (lane.device == kNone) lane.name = owner + lane.name;
    lane.device = moved(lane.device);
  });
  append(to.tasks, std::move(plan.tasks), [&](Task& task) {
    if (task.device == kNone) task.name = owner + task.name;
    task.device = moved(task.device);
    task.lane += at.lanes;
  });
  append(to.edges, std::move(plan.edges), [&](Edge& edge) {
    edge.from += at.tasks;
    edge.to += at.tasks;
  });
  append(to.arenas, std::move(plan.arenas), [&](Arena& arena) { arena.device = moved(arena.device); });
}

void add_samples(Sampling& to, const Sampling& sampling, const Offsets& at, const std::string& owner) {
  for (SampleSeries series : sampling.series) {
    if (series.device == kNone) series.name = owner + "/" + series.name;
    if (series.device != kNone) series.device += at.devices;
    std::vector<double> values;
    for (const int64_t time : to.at) {
      const auto next = std::upper_bound(sampling.at.begin(), sampling.at.end(), time) - sampling.at.begin();
      values.push_back(series.values.empty() ? 0 : series.values[size_t(std::max<int64_t>(0, next - 1))]);
    }
    series.values = std::move(values);
    to.series.push_back(std::move(series));
  }
  if (!sampling.note.empty()) to.note += fmt::format("{}{}: {}", to.note.empty() ? "" : "; ", owner, sampling.note);
}

}  // namespace

std::string packed(const TraceFile& trace) {
  PartWriter part;
  part.array(trace_record(trace).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  part.array(trace.tasks);
  part.array(trace.nodes);
  part.array(trace.issues);
  part.array(trace.sampling.at);
  for (const SampleSeries& series : trace.sampling.series) part.array(series.values);
  return std::move(part.bytes);
}

TraceFile unpacked(const std::string& part) {
  PartReader in(part);
  TraceFile trace;
  take_record(nlohmann::json::parse(in.text()), trace);
  trace.tasks = in.array<TaskSpan>();
  trace.nodes = in.array<NodeSpan>();
  trace.issues = in.array<IssueSpan>();
  trace.sampling.at = in.array<int64_t>();
  for (SampleSeries& series : trace.sampling.series) series.values = in.array<double>();
  return trace;
}

void move_times(TraceFile& trace, const std::function<int64_t(int64_t)>& moved) {
  const auto move = [&](int64_t& time) {
    if (time >= 0) time = std::max<int64_t>(0, moved(time));
  };
  for (TaskSpan& span : trace.tasks) {
    for (int64_t* time : {&span.ready, &span.issued, &span.started, &span.ended}) move(*time);
  }
  for (NodeSpan& span : trace.nodes) {
    for (int64_t* time : {&span.started, &span.ended}) move(*time);
  }
  for (IssueSpan& span : trace.issues) {
    for (int64_t* time : {&span.started, &span.ended}) move(*time);
  }
  for (int64_t& time : trace.sampling.at) move(time);
}

TraceFile joined(std::vector<TraceFile> traces) {
  TraceFile all;
  const TraceFile& first = traces.front();
  all.graph = first.graph;
  all.run = first.run;
  all.run.models.clear();
  all.run.ranks = int64_t(traces.size());
  all.plan.clocks = first.plan.clocks;
  all.plan.relations = first.plan.relations;
  all.sampling.interval_ms = first.sampling.interval_ms;
  all.sampling.at = first.sampling.at;
  const bool alone = std::any_of(traces.begin(), traces.end(), [](const TraceFile& one) { return !one.alone.empty(); });
  int32_t threads = 0;
  for (TraceFile& trace : traces) {
    const Offsets at = {int32_t(all.plan.devices.size()), int32_t(all.plan.lanes.size()),
                        int32_t(all.plan.tasks.size()), int32_t(all.launches.size()), threads};
    threads += threads_of(trace);
    all.run.clock_error = std::max(all.run.clock_error, trace.run.clock_error);
    add_samples(all.sampling, trace.sampling, at, trace.plan.devices.front().host);
    trace.alone.resize(alone ? trace.plan.tasks.size() : 0, -1);
    append(all.alone, std::move(trace.alone), [](int64_t&) {});
    add_plan(all.plan, trace.plan, at);
    append(all.run.models, std::move(trace.run.models), [](std::string&) {});
    append(all.launches, std::move(trace.launches), [](std::string&) {});
    append(all.operators, std::move(trace.operators), [](std::string&) {});
    append(all.tasks, std::move(trace.tasks), [&](TaskSpan& span) { span.task += at.tasks; });
    const auto place = [&](auto& one) {
      one.task += at.tasks;
      one.launch += at.launches;
    };
    append(all.nodes, std::move(trace.nodes), place);
    append(all.timed, std::move(trace.timed), place);
    append(all.issues, std::move(trace.issues), [&](IssueSpan& span) {
      span.task += at.tasks;
      span.thread += at.threads;
    });
    all.threads.host += trace.threads.host;
    all.threads.issuing += trace.threads.issuing;
    all.reading.samples += trace.reading.samples;
    all.reading.read += trace.reading.read;
    all.reading.decode += trace.reading.decode;
    all.reading.scale += trace.reading.scale;
    all.dropped += trace.dropped;
    all.unfinished += trace.unfinished;
  }
  sort_by_start(all);
  return all;
}

}  // namespace arbalest
