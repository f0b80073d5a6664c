#include "executor/trace/trace_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include "executor/trace/trace_plan.h"
#include "graph/error.h"
#include "io/formats/file.h"
#include "io/formats/json_error.h"

namespace arbalest {
namespace {

using nlohmann::json;

constexpr double kMostMicroseconds = 1e13;

// The whole content; gzread passes through what is not gzipped.
std::string read_all(const std::string& path) {
  errno = 0;
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw RunError(fmt::format("{}: cannot open: {}", path, std::strerror(errno ? errno : ENOMEM)));
  gzbuffer(file.get(), 1 << 18);
  constexpr size_t kChunk = 1 << 20;
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  const uint64_t most = regular ? most_decompressed(std::filesystem::file_size(path, error)) : UINT64_MAX;
  std::string text;
  for (;;) {
    const size_t old = text.size();
    text.resize(old + kChunk);
    const int got = gzread(file.get(), text.data() + old, unsigned(kChunk));
    int status = Z_OK;
    const char* message = gzerror(file.get(), &status);
    if (got < 0 || (status != Z_OK && status != Z_STREAM_END)) {
      std::string_view why = status == Z_ERRNO ? std::strerror(errno) : message;
      if (why.substr(0, path.size() + 2) == path + ": ") why.remove_prefix(path.size() + 2);  // zlib's own prefix
      throw RunError(fmt::format("{}: cannot read: {}", path, why));
    }
    text.resize(old + size_t(got));
    if (text.size() > most) {
      throw RunError(fmt::format("{}: cannot read: it holds more than {} MiB, which no trace of this size does", path,
                                 most >> 20));
    }
    if (size_t(got) < kChunk) return text;
  }
}

Position position_of(const std::string& path, const std::string& text, size_t byte) {
  const auto end = text.begin() + std::ptrdiff_t(std::min(byte > 0 ? byte - 1 : 0, text.size()));
  const auto line = std::count(text.begin(), end, '\n');
  const auto start = std::find(std::make_reverse_iterator(end), text.rend(), '\n').base();
  return {path, int(line) + 1, int(end - start) + 1};
}

// Files hold µs with three decimals. What lies beyond a hundred days is no time of a run.
int64_t nanoseconds(const json& object, const char* key, double least = -kMostMicroseconds) {
  const double microseconds = object.at(key).get<double>();
  if (microseconds >= least && microseconds <= kMostMicroseconds) return std::llround(microseconds * 1000);
  throw GraphError(
      fmt::format("'{}' is {} µs, expected a number from {:g} to {:g}", key, microseconds, least, kMostMicroseconds));
}

double seconds_of(const json& object, const char* key) {
  const double seconds = object.at(key).get<double>();
  if (seconds >= 0 && seconds <= kMostMicroseconds) return seconds;
  throw GraphError(fmt::format("'{}' is {} s, expected a number from 0 to {:g}", key, seconds, kMostMicroseconds));
}

double value_of(const json& object, const char* key) {
  constexpr double kMost = 1e18;
  const double value = object.at(key).get<double>();
  if (value >= -kMost && value <= kMost) return value;
  throw GraphError(fmt::format("'{}' is {}, expected a number from {:g} to {:g}", key, value, -kMost, kMost));
}

int64_t nanoseconds_or_unknown(const json& args, const char* key) {
  return args.contains(key) ? nanoseconds(args, key) : -1;
}

int32_t task_of(const json& args) {
  return int32_t(integer_of(args, "task", 0, INT32_MAX));
}
int64_t instance_of(const json& args) {
  return integer_of(args, "iteration", 0, kMostTraceTicks);
}

// Takes events one by one, so that a long trace never exists as a tree.
class EventReader {
 public:
  explicit EventReader(TraceFile& trace) : trace_(trace) {}

  void take(const json& event) {
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
  void take_known(const json& event) {
    const std::string phase = event.at("ph");
    if (phase == "M" && event.at("name") == "arbalest") take_record(event.at("args"));
    const std::string category = event.value("cat", "");
    if (phase == "C" && category == "sample") take_sample(event);
    if (phase != "X") return;
    const int64_t started = nanoseconds(event, "ts");
    const int64_t ended = started + nanoseconds(event, "dur", 0);
    if (category == "task") {
      const json& args = event.at("args");
      trace_.tasks.push_back({task_of(args), instance_of(args), nanoseconds_or_unknown(args, "ready"),
                              nanoseconds_or_unknown(args, "issued"), started, ended});
    } else if (category == "node") {
      const json& args = event.at("args");
      const auto launch = int32_t(integer_of(args, "launch", 0, INT32_MAX));
      trace_.nodes.push_back({launch, task_of(args), instance_of(args), started, ended});
    } else if (category == "issue") {
      const json& args = event.at("args");
      const auto thread = int32_t(integer_of(args, "thread", 0, kMostTraceThreads));
      trace_.issues.push_back({task_of(args), instance_of(args), started, ended, thread});
    }
  }

  void take_record(const json& record) {
    trace_.plan = plan_of_record(record.at("plan"));
    trace_.graph = printable(record.at("graph").get<std::string>());  // names of a trace are printed only
    trace_.launches = record.at("launches").get<std::vector<std::string>>();
    for (std::string& name : trace_.launches) name = printable(name);
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
                  text("begins"),
                  text("ended"),
                  text("message"),
                  integer_of(run, "ended_after", -1, kMostTraceTicks)};
  }

  void take_sampling(const json& sampling) {
    trace_.sampling.interval_ms = integer_of(sampling, "interval_ms", 0, INT32_MAX);
    trace_.sampling.note = printable(sampling.at("note").get<std::string>());
    for (const json& one : sampling.at("series")) {
      const auto device = int32_t(integer_of(one, "device", kNone, int64_t(trace_.plan.devices.size()) - 1));
      trace_.sampling.series.push_back({printable(one.at("name").get<std::string>()),
                                        device,
                                        printable(one.at("unit").get<std::string>()),
                                        value_of(one, "most"),
                                        {}});
    }
  }

  // The number of the series is the counter's thread; a sample of all series follows the other.
  void take_sample(const json& event) {
    Sampling& sampling = trace_.sampling;
    const auto series = size_t(integer_of(event, "tid", 0, int64_t(sampling.series.size()) - 1));
    std::vector<double>& values = sampling.series[series].values;
    const int64_t at = nanoseconds(event, "ts");
    if (series == 0) sampling.at.push_back(at);
    values.push_back(value_of(event.at("args"), sampling.series[series].unit.c_str()));
    if (values.size() == sampling.at.size() && sampling.at.back() == at) return;
    throw GraphError(
        fmt::format("a sample of '{}' is not beside those of the other series", sampling.series[series].name));
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

TraceFile parse(const std::string& path, const std::string& text) {
  if (text.empty()) {
    throw GraphError(Position{path, 0, 0}, "found an empty file, expected a trace that run --trace wrote");
  }
  TraceFile trace;
  EventReader reader(trace);
  constexpr int kDeepest = 16;  // objects and lists within each other; messages that show a value go down it
  // Events are objects at depth 2: in the list, in the outermost object.
  const auto take = [&](int depth, json::parse_event_t kind, json& value) {
    if (depth > kDeepest) throw GraphError(fmt::format("objects and lists are nested more than {} deep", kDeepest));
    if (depth != 2 || kind != json::parse_event_t::object_end) return true;
    reader.take(value);
    return false;
  };
  try {
    const json rest = json::parse(text, take);
    if (!rest.is_object() || !rest.contains("traceEvents")) throw GraphError("found no list 'traceEvents'");
    if (!reader.has_plan()) {
      throw GraphError("found no metadata record 'arbalest': the trace was not written by arbalest");
    }
    if (trace.plan.clocks.empty() || trace.plan.clocks[0].ticks < 1) {
      throw GraphError("the plan's first clock makes no tick");
    }
    if (!trace.alone.empty() && trace.alone.size() != trace.plan.tasks.size()) {
      throw GraphError(fmt::format("the record 'arbalest' has times alone of {} tasks, but the plan has {}",
                                   trace.alone.size(), trace.plan.tasks.size()));
    }
    check_tasks(trace.tasks, trace.plan);
    check_tasks(trace.nodes, trace.plan);
    check_tasks(trace.issues, trace.plan);
    check_samples(trace.sampling);
    for (const NodeSpan& span : trace.nodes) check_launch(span.launch, trace, "an event");
    for (const NodeTime& node : trace.timed) {
      check_launch(node.launch, trace, "the list 'timed'");
      if (size_t(node.task) < trace.plan.tasks.size()) continue;
      throw GraphError(
          fmt::format("the list 'timed' names task {}, but the plan has {}", node.task, trace.plan.tasks.size()));
    }
  } catch (const json::parse_error& error) {
    const std::string message = message_of(error);  // "parse error at line 1, column 2: …"
    throw GraphError(position_of(path, text, error.byte),
                     fmt::format("not JSON: {}", message.substr(message.find(": ") + 2)));
  } catch (const GraphError& error) {
    throw GraphError(Position{path, 0, 0}, error.what());
  }
  return trace;
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
  const auto found = std::lower_bound(spans.begin(), spans.end(), instance,
                                      [](const TaskSpan* span, int64_t wanted) { return span->instance < wanted; });
  return found != spans.end() && (*found)->instance == instance ? *found : nullptr;
}

TraceFile read_trace(const std::string& path) {
  TraceFile trace = parse(path, read_all(path));
  const auto by_start = [](const auto& a, const auto& b) { return a.started < b.started; };
  std::stable_sort(trace.tasks.begin(), trace.tasks.end(), by_start);
  std::stable_sort(trace.nodes.begin(), trace.nodes.end(), by_start);
  std::stable_sort(trace.issues.begin(), trace.issues.end(), by_start);
  return trace;
}

}  // namespace arbalest
