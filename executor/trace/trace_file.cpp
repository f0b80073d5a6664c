// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "executor/trace/trace_plan.h"
#include "io/formats/json_error.h"
#include "io/formats/trace_events.h"

namespace arbalest {
namespace {

using nlohmann::json;

constexpr double kMostMicroseconds = 1e13;

double number_of(const json& value, const char* name) {
  if (value.is_number()) return value.get<double>();
  throw GraphError(fmt::format("'{}' is of type {}, expected a number", name, value.type_name()));
}

// Files hold µs with three decimals. What lies beyond a hundred days is no time of a run.
int64_t nanoseconds(const json& value, const char* name, double least = -kMostMicroseconds) {
  const double microseconds = number_of(value, name);
  if (microseconds >= least && microseconds <= kMostMicroseconds) return std::llround(microseconds * 1000);
  throw GraphError(
      fmt::format("'{}' is {} µs, expected a number from {:g} to {:g}", name, microseconds, least, kMostMicroseconds));
}

double seconds_of(const json& object, const char* key) {
  const double seconds = number_of(object.at(key), key);
  if (seconds >= 0 && seconds <= kMostMicroseconds) return seconds;
  throw GraphError(fmt::format("'{}' is {} s, expected a number from 0 to {:g}", key, seconds, kMostMicroseconds));
}

double value_of(const json& value, const char* name) {
  constexpr double kMost = 1e18;
  const double number = number_of(value, name);
  if (number >= -kMost && number <= kMost) return number;
  throw GraphError(fmt::format("'{}' is {}, expected a number from {:g} to {:g}", name, number, -kMost, kMost));
}

int64_t nanoseconds_or_unknown(const EventFields& args, const char* key) {
  const json* value = args.find(key);
  return value == nullptr ? -1 : nanoseconds(*value, key);
}

int64_t integer_in(const EventFields& args, const char* key, int64_t most) {
  return whole_number(args.at(key), key, 0, most);
}
int32_t task_of(const EventFields& args) {
  return int32_t(integer_in(args, "task", INT32_MAX));
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
    if (phase == "M" && fields.at("name") == "arbalest") take_record(args.as_object());
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

  void take_record(const json& record) {
    if (has_plan_) throw GraphError("a second record 'arbalest', expected one");  // what the first named may be gone
    trace_.plan = plan_of_record(record.at("plan"));
    trace_.graph = printable(record.at("graph").get<std::string>());  // names of a trace are printed only
    trace_.launches = record.at("launches").get<std::vector<std::string>>();
    for (std::string& name : trace_.launches) name = printable(name);
    if (const auto operators = record.find("operators"); operators != record.end()) {
      trace_.operators = operators->get<std::vector<std::string>>();
      for (std::string& name : trace_.operators) name = printable(name);
    }
    if (const auto run = record.find("run"); run != record.end()) take_run(*run);
    if (const auto threads = record.find("threads"); threads != record.end()) {
      trace_.threads = {int32_t(integer_of(*threads, "host", 0, kMostTraceThreads)),
                        int32_t(integer_of(*threads, "issuing", 0, kMostTraceThreads))};
    }
    if (const auto reading = record.find("reading"); reading != record.end()) {
      trace_.reading = {
          integer_of(*reading, "samples", 0, INT64_MAX), seconds_of(*reading, "read"), seconds_of(*reading, "decode"),
          seconds_of(*reading, reading->contains("scale") ? "scale" : "transform")};  // the latter: of earlier versions
    }
    if (const auto alone = record.find("alone"); alone != record.end()) {
      trace_.alone = alone->get<std::vector<int64_t>>();
      for (int64_t& time : trace_.alone) time = std::clamp<int64_t>(time, -1, int64_t(kMostMicroseconds) * 1000);
    }
    if (const auto timed = record.find("timed"); timed != record.end()) take_timed(*timed);
    if (const auto sampling = record.find("sampling"); sampling != record.end()) take_sampling(*sampling);
    trace_.dropped = integer_of(record, "dropped", 0, INT64_MAX);
    trace_.unfinished = integer_of(record, "unfinished", 0, INT64_MAX);
    has_plan_ = true;
  }

  void take_run(const json& run) {
    const auto text = [&](const char* key) { return printable(run.at(key).get<std::string>()); };
    trace_.run = {text("strategy"),
                  integer_of(run, "learners", 0, INT32_MAX),
                  integer_of(run, "iterations", 0, kMostTraceTicks),
                  integer_of(run, "first", 0, kMostTraceTicks),
                  parse_segment_begin(text("begins")),
                  parse_run_end(text("ended")),
                  text("message"),
                  integer_of(run, "ended_after", -1, kMostTraceTicks)};
    if (!run.contains("command")) return;  // of an earlier version
    const auto texts = [&](const char* key) {
      auto list = run.at(key).get<std::vector<std::string>>();
      for (std::string& one : list) one = printable(one);
      return list;
    };
    trace_.run.command = texts("command");
    trace_.run.started = text("started");
    trace_.run.source = text("source");
    trace_.run.precision = text("precision");
    trace_.run.batch = integer_of(run, "batch", 0, INT32_MAX);
    trace_.run.models = texts("models");
  }

  void take_sampling(const json& sampling) {
    trace_.sampling.interval_ms = integer_of(sampling, "interval_ms", 0, INT32_MAX);
    trace_.sampling.note = printable(sampling.at("note").get<std::string>());
    for (const json& one : sampling.at("series")) {
      const auto device = int32_t(integer_of(one, "device", kNone, int64_t(trace_.plan.devices.size()) - 1));
      trace_.sampling.series.push_back({printable(one.at("name").get<std::string>()),
                                        device,
                                        printable(one.at("unit").get<std::string>()),
                                        value_of(one.at("most"), "most"),
                                        {}});
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
    values.push_back(value_of(event.args.at(unit), unit.c_str()));
    if (values.size() == sampling.at.size() && sampling.at.back() == at) return;
    throw GraphError(
        fmt::format("a sample of '{}' has another time than those of the other series", sampling.series[series].name));
  }

  void take_timed(const json& timed) {
    const auto launches = timed.at("launch").get<std::vector<int32_t>>(),
               tasks = timed.at("task").get<std::vector<TaskId>>();
    const auto times = timed.at("ns").get<std::vector<int64_t>>();
    if (launches.size() != tasks.size() || launches.size() != times.size()) {
      throw GraphError(fmt::format("the lists of 'timed' have {}, {} and {} elements, expected as many in each",
                                   launches.size(), tasks.size(), times.size()));
    }
    for (size_t i = 0; i < times.size(); ++i) {
      trace_.timed.push_back(
          {launches[i], tasks[i], std::clamp<int64_t>(times[i], 0, int64_t(kMostMicroseconds) * 1000)});
    }
  }

  TraceFile& trace_;
  int64_t count_ = 0;
  bool has_plan_ = false;
};

template <typename Span>
void check_tasks(const std::vector<Span>& spans, const Plan& plan) {
  for (const Span& span : spans) {
    if (size_t(span.task) >= plan.tasks.size()) {
      throw GraphError(fmt::format("an event names task {}, but the plan has {}", span.task, plan.tasks.size()));
    }
    const Task& task = plan.tasks[size_t(span.task)];
    const Clock& clock = plan.clocks[size_t(task.clock)];
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
    if (size_t(node.task) < trace.plan.tasks.size()) continue;
    throw GraphError(
        fmt::format("the list 'timed' names task {}, but the plan has {}", node.task, trace.plan.tasks.size()));
  }
}

// Traces are written in this order, and to sort takes half as much memory again as what is sorted.
template <typename Span>
void sort_by_start(std::vector<Span>& spans) {
  const auto by_start = [](const Span& a, const Span& b) { return a.started < b.started; };
  if (!std::is_sorted(spans.begin(), spans.end(), by_start)) std::stable_sort(spans.begin(), spans.end(), by_start);
}

}  // namespace

SpanIndex::SpanIndex(const TraceFile& trace) : by_task_(trace.plan.tasks.size()) {
  for (const TaskSpan& span : trace.tasks) by_task_[size_t(span.task)].push_back(&span);
  for (auto& spans : by_task_) {
    std::sort(spans.begin(), spans.end(),
              [](const TaskSpan* a, const TaskSpan* b) { return a->instance < b->instance; });
  }
}

const TaskSpan* SpanIndex::find(TaskId task, int64_t instance) const {
  const auto& spans = by_task_[size_t(task)];
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
  sort_by_start(trace.tasks);
  sort_by_start(trace.nodes);
  sort_by_start(trace.issues);
  return trace;
}

}  // namespace arbalest
