// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "executor/trace/trace_record.h"
#include "io/formats/json_error.h"
#include "io/formats/trace_events.h"

namespace arbalest {
namespace {

using nlohmann::json;

// Files hold µs with three decimals. What lies beyond a hundred days is no time of a run.
int64_t nanoseconds(const json& value, const char* name, double least = -kMostMicroseconds) {
  const double microseconds = number_of(value, name);
  if (microseconds >= least && microseconds <= kMostMicroseconds) return std::llround(microseconds * 1000);
  throw GraphError(
      fmt::format("'{}' is {} µs, expected a number from {:g} to {:g}", name, microseconds, least, kMostMicroseconds));
}

int64_t nanoseconds_or_unknown(const EventFields& args, const char* key) {
  const json* value = args.find(key);
  return value == nullptr ? -1 : nanoseconds(*value, key);
}

int64_t integer_in(const EventFields& args, const char* key, int64_t most) {
  return whole_number(args.at(key), key, 0, most);
}
TaskId task_of(const EventFields& args) {
  return TaskId(integer_in(args, "task", INT32_MAX));
}
int64_t instance_of(const EventFields& args) {
  return integer_in(args, "iteration", kMostTraceTicks);
}

std::string_view text_of(const json& value, const char* name) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  throw GraphError(fmt::format("'{}' is of type {}, expected a text", name, value.type_name()));
}

class EventReader {
 public:
  explicit EventReader(TraceFile& trace) : trace_(trace) {}

  void take(const TraceEvent& event) {
    ++count_;
    try {
      take_known(event);
    } catch (const json::exception& error) {
      throw GraphError(fmt::format("event {}: {}", count_, message_of(error)));
    } catch (const GraphError& error) {
      throw GraphError(fmt::format("event {}: {}", count_, error.what()));
    }
  }
  bool has_plan() const { return has_plan_; }

 private:
  void take_known(const TraceEvent& event) {
    const EventFields &fields = event.fields, &args = event.args;
    const std::string_view phase = text_of(fields.at("ph"), "ph");
    if (phase == "M" && fields.at("name") == "arbalest") {
      if (has_plan_) throw GraphError("a second record 'arbalest', expected one");  // what the first named may be gone
      take_record(args.as_object(), trace_);
      has_plan_ = true;
    }
    const json* named = fields.find("cat");
    const std::string_view category = named == nullptr ? "" : text_of(*named, "cat");
    if (phase == "C" && category == "sample") take_sample(event);
    if (phase != "X") return;
    const int64_t started = nanoseconds(fields.at("ts"), "ts");
    const int64_t ended = started + nanoseconds(fields.at("dur"), "dur", 0);
    if (category == "task") {
      trace_.tasks.push_back({task_of(args), instance_of(args), nanoseconds_or_unknown(args, "ready"),
                              nanoseconds_or_unknown(args, "issued"), started, ended});
    } else if (category == "node") {
      const auto launch = int32_t(integer_in(args, "launch", INT32_MAX));
      trace_.nodes.push_back({launch, task_of(args), instance_of(args), started, ended});
    } else if (category == "issue") {
      const auto thread = int32_t(integer_in(args, "thread", kMostTraceThreads));
      trace_.issues.push_back({task_of(args), instance_of(args), started, ended, thread});
    }
  }

  // The number of the series is the counter's thread; a sample of all series follows the other.
  void take_sample(const TraceEvent& event) {
    Sampling& sampling = trace_.sampling;
    const auto series = size_t(integer_in(event.fields, "tid", int64_t(sampling.series.size()) - 1));
    std::vector<double>& values = sampling.series[series].values;
    const int64_t at = nanoseconds(event.fields.at("ts"), "ts");
    if (series == 0) sampling.at.push_back(at);
    const std::string& unit = sampling.series[series].unit;
    values.push_back(sample_of(event.args.at(unit), unit.c_str()));
    if (values.size() == sampling.at.size() && sampling.at.back() == at) return;
    throw GraphError(
        fmt::format("a sample of '{}' has another time than those of the other series", sampling.series[series].name));
  }

  TraceFile& trace_;
  int64_t count_ = 0;
  bool has_plan_ = false;
};

template <typename Span>
void check_tasks(const std::vector<Span>& spans, const Plan& plan) {
  for (const Span& span : spans) {
    if (!plan.tasks.contains(span.task)) {
      throw GraphError(
          fmt::format("an event names task {}, but the plan has {}", int32_t(span.task), plan.tasks.size()));
    }
    const Task& task = plan.tasks[span.task];
    const Clock& clock = plan.clocks[task.clock];
    if (span.instance < clock.ticks) continue;
    throw GraphError(fmt::format("an event is instance {} of task '{}', but its clock '{}' makes {} ticks",
                                 span.instance, task.name, clock.name, clock.ticks));
  }
}

void check_samples(const Sampling& sampling) {
  if (!std::is_sorted(sampling.at.begin(), sampling.at.end())) throw GraphError("samples are not in the order of time");
  for (const SampleSeries& series : sampling.series) {
    if (series.values.size() == sampling.at.size()) continue;
    throw GraphError(fmt::format("'{}' has {} samples, but there are {} of the first series", series.name,
                                 series.values.size(), sampling.at.size()));
  }
}

void check_launch(int32_t launch, const TraceFile& trace, const char* who) {
  if (size_t(launch) < trace.launches.size()) return;
  throw GraphError(
      fmt::format("{} names launch {}, but the record 'arbalest' has {}", who, launch, trace.launches.size()));
}

// Sums of durations, and of what is between them on all lanes, fit 64 bits.
template <typename Span>
void check_time(const std::vector<Span>& spans, size_t lanes) {
  constexpr double kMost = 1e18;  // ns
  double sum = 0, first = 0, last = 0;
  for (const Span& span : spans) {
    sum += double(span.ended - span.started);
    first = std::min(first, double(span.started));
    last = std::max(last, double(span.ended));
  }
  const double all = std::max(sum, (last - first) * double(std::max<size_t>(lanes, 1)));
  if (all <= kMost) return;
  throw GraphError(fmt::format("what it tells of takes {:g} s, all lanes together, expected at most {:g} s", all / 1e9,
                               kMost / 1e9));
}

void check_trace(const TraceFile& trace) {
  if (trace.plan.clocks.empty() || trace.plan.clocks[0].ticks < 1) {
    throw GraphError("the plan's first clock makes no tick");
  }
  if (!trace.alone.empty() && trace.alone.size() != trace.plan.tasks.size()) {
    throw GraphError(fmt::format("the record 'arbalest' has times alone of {} tasks, but the plan has {}",
                                 trace.alone.size(), trace.plan.tasks.size()));
  }
  if (!trace.operators.empty() && trace.operators.size() != trace.launches.size()) {
    throw GraphError(fmt::format("the record 'arbalest' has operators of {} launches, but there are {}",
                                 trace.operators.size(), trace.launches.size()));
  }
  check_tasks(trace.tasks, trace.plan);
  check_tasks(trace.nodes, trace.plan);
  check_tasks(trace.issues, trace.plan);
  check_time(trace.tasks, trace.plan.lanes.size());
  check_time(trace.nodes, 1);
  check_time(trace.issues, 1);
  check_samples(trace.sampling);
  for (const NodeSpan& span : trace.nodes) check_launch(span.launch, trace, "an event");
  for (const NodeTime& node : trace.timed) {
    check_launch(node.launch, trace, "the list 'timed'");
    if (trace.plan.tasks.contains(node.task)) continue;
    throw GraphError(fmt::format("the list 'timed' names task {}, but the plan has {}", int32_t(node.task),
                                 trace.plan.tasks.size()));
  }
}

}  // namespace

// Traces are written in this order, and to sort takes half as much memory again as what is sorted.
void sort_by_start(TraceFile& trace) {
  const auto sort = [](auto& spans) {
    const auto by_start = [](const auto& a, const auto& b) { return a.started < b.started; };
    if (!std::is_sorted(spans.begin(), spans.end(), by_start)) std::stable_sort(spans.begin(), spans.end(), by_start);
  };
  sort(trace.tasks);
  sort(trace.nodes);
  sort(trace.issues);
}

SpanIndex::SpanIndex(const TraceFile& trace) : by_task_(trace.plan.tasks.size()) {
  for (const TaskSpan& span : trace.tasks) by_task_[span.task].push_back(&span);
  for (auto& spans : by_task_) {
    std::sort(spans.begin(), spans.end(),
              [](const TaskSpan* a, const TaskSpan* b) { return a->instance < b->instance; });
  }
}

const TaskSpan* SpanIndex::find(TaskId task, int64_t instance) const {
  const auto& spans = by_task_[task];
  if (spans.empty()) return nullptr;
  const auto place = uint64_t(instance - spans.front()->instance);  // if none before it is missing
  if (place < spans.size() && spans[place]->instance == instance) return spans[place];
  const auto found = std::lower_bound(spans.begin(), spans.end(), instance,
                                      [](const TaskSpan* span, int64_t wanted) { return span->instance < wanted; });
  return found != spans.end() && (*found)->instance == instance ? *found : nullptr;
}

TraceFile read_trace(const std::string& path) {
  TraceFile trace;
  EventReader reader(trace);
  read_events(path, [&](const TraceEvent& event) { reader.take(event); });
  try {
    if (!reader.has_plan()) {
      throw GraphError("found no metadata record 'arbalest': the trace was not written by arbalest");
    }
    check_trace(trace);
  } catch (const GraphError& error) {
    throw GraphError(Position{path, 0, 0}, error.what());
  }
  sort_by_start(trace);
  return trace;
}

}  // namespace arbalest
