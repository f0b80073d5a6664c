// SPDX-License-Identifier: Apache-2.0

// The writing half of trace_file.h: events in the order metadata, slices, flows, counters.

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "executor/trace/trace_file.h"
#include "executor/trace/trace_record.h"

namespace arbalest {
namespace {

// Thread numbers are unique over processes: some viewers know a thread by its number alone.
constexpr int kHostProcess = 1;
constexpr int kFirstDeviceProcess = 2;
constexpr int kFirstLaneTrack = 100;
constexpr int kFirstHostTrack = 10'000;
constexpr int kFirstIssueTrack = 20'000;

// Writes a file that takes its name once it is complete, compressed unless it is called NAME.json.
class GzipFile {
 public:
  GzipFile(const std::string& path, int compression) : path_(path), target_(path) {
    errno = 0;
    const int descriptor = dup(target_.descriptor());  // zlib closes its own
    const std::string mode = path.ends_with(".json") ? "wbT" : fmt::format("wb{}", compression);
    file_ = descriptor < 0 ? nullptr : gzdopen(descriptor, mode.c_str());
    if (!file_ && descriptor >= 0) close(descriptor);
    if (!file_) fail(errno ? errno : ENOMEM);
    gzbuffer(file_, 1 << 18);
  }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;
  ~GzipFile() {
    if (file_) gzclose(file_);
  }

  void write(std::string_view text) {
    if (text.empty()) return;
    if (gzwrite(file_, text.data(), unsigned(text.size())) != int(text.size())) fail(errno ? errno : EIO);
  }
  void commit() {
    if (gzclose(std::exchange(file_, nullptr)) != Z_OK) fail(errno ? errno : EIO);
    target_.commit();
  }

 private:
  [[noreturn]] void fail(int error) const {
    throw RunError(fmt::format("{}: cannot be written: {}", path_, std::strerror(error)));
  }

  std::string path_;
  AtomicFile target_;
  gzFile file_ = nullptr;
};

struct Track {
  int process = 0, thread = 0;
};

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// µs with the nanoseconds as decimals, without a detour over floating point.
struct Microseconds {
  int64_t ns;
};

// The tracks of a lane's slices. A device lane is one track. Host tasks overlap: each takes the first track that is
// free.
class Tracks {
 public:
  Tracks(const Plan& plan) : plan_(plan) {}

  Track take(const TaskSpan& span) {
    const LaneId lane = plan_.tasks[span.task].lane;
    const int32_t device = plan_.lanes[lane].device;
    if (!plan_.on_host(span.task)) return {process_of(device), kFirstLaneTrack + int32_t(lane)};
    size_t track = 0;
    while (track < host_.size() && (host_[track].lane != lane || host_[track].free_from > span.started)) ++track;
    if (track == host_.size()) host_.push_back({lane, 0});
    host_[track].free_from = span.ended;
    return {kHostProcess, kFirstHostTrack + int(track)};
  }
  // The lane of each track of the host.
  std::vector<LaneId> host_lanes() const {
    std::vector<LaneId> lanes;
    for (const HostTrack& track : host_) lanes.push_back(track.lane);
    return lanes;
  }
  static int process_of(int32_t device) { return device == kNone ? kHostProcess : kFirstDeviceProcess + device; }

 private:
  struct HostTrack {
    LaneId lane = kNone;
    int64_t free_from = 0;
  };
  const Plan& plan_;
  std::vector<HostTrack> host_;
};

}  // namespace
}  // namespace arbalest

template <>
struct fmt::formatter<arbalest::Microseconds> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(arbalest::Microseconds time, format_context& context) const {
    const int64_t ns = time.ns < 0 ? -time.ns : time.ns;
    return fmt::format_to(context.out(), "{}{}.{:03}", time.ns < 0 ? "-" : "", ns / 1000, ns % 1000);
  }
};

namespace arbalest {
namespace {

class Writer {
 public:
  Writer(const TraceFile& trace, const std::string& path, const TraceWriteOptions& options)
      : trace_(trace), plan_(trace.plan), file_(path, options.compression), most_flows_(options.flows) {
    for (const Task& task : plan_.tasks) task_names_.push_back(quoted(task.name));
  }

  void write() {
    file_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    write_record();
    write_tasks();
    write_nodes();
    write_issues();
    write_names();
    write_flows();
    write_counters();
    write_samples();
    file_.write("\n]}\n");
    file_.commit();
  }

 private:
  template <typename... Arguments>
  void event(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_.clear();
    if (!first_) text_ += ",\n";
    first_ = false;
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    file_.write(text_);
  }

  void write_record() {
    event(R"({{"ph":"M","name":"arbalest","pid":{},"tid":0,"ts":0,"args":{}}})", kHostProcess,
          trace_record(trace_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  // Events of a GPU are timed by the microsecond, so that neighbours in a queue may seem to overlap by one. The later
  // slice is cut where the earlier one ends, for slices of a track must nest.
  void write_tasks() {
    Tracks tracks(plan_);
    Table<LaneId, int64_t> lane_end(plan_.lanes.size(), 0);
    slices_.reserve(trace_.tasks.size());
    for (const TaskSpan& span : trace_.tasks) {
      int64_t start = span.started;
      if (!plan_.on_host(span.task)) {
        int64_t& end = lane_end[plan_.tasks[span.task].lane];
        start = std::min(std::max(start, end), span.ended);
        end = std::max(end, span.ended);
      }
      const Track track = tracks.take(span);
      slices_.push_back({track, start, span.ended});
      std::string times;
      if (span.ready >= 0) times += fmt::format(",\"ready\":{}", Microseconds{span.ready});
      if (span.issued >= 0) times += fmt::format(",\"issued\":{}", Microseconds{span.issued});
      if (span.ready >= 0) times += fmt::format(",\"wait_us\":{}", Microseconds{span.started - span.ready});
      event(R"({{"ph":"X","cat":"task","name":{},"pid":{},"tid":{},"ts":{},"dur":{},)"
            R"("args":{{"task":{},"iteration":{}{}}}}})",
            task_names_[span.task], track.process, track.thread, Microseconds{start}, Microseconds{span.ended - start},
            int32_t(span.task), span.instance, times);
    }
    host_lanes_ = tracks.host_lanes();
  }

  void write_nodes() {
    std::vector<std::string> names;
    for (const std::string& name : trace_.launches) names.push_back(quoted(name));
    for (const NodeSpan& span : trace_.nodes) {
      const LaneId lane = plan_.tasks[span.task].lane;
      const bool named = span.launch >= 0 && size_t(span.launch) < names.size();
      event(R"({{"ph":"X","cat":"node","name":{},"pid":{},"tid":{},"ts":{},"dur":{},)"
            R"("args":{{"task":{},"iteration":{},"launch":{}}}}})",
            named ? names[size_t(span.launch)] : "\"node\"", Tracks::process_of(plan_.lanes[lane].device),
            kFirstLaneTrack + int32_t(lane), Microseconds{span.started}, Microseconds{span.ended - span.started},
            int32_t(span.task), span.instance, span.launch);
    }
  }

  void write_issues() {
    for (const IssueSpan& span : trace_.issues) {
      issue_threads_ = std::max(issue_threads_, span.thread + 1);
      event(R"({{"ph":"X","cat":"issue","name":{},"pid":{},"tid":{},"ts":{},"dur":{},)"
            R"("args":{{"task":{},"iteration":{},"thread":{}}}}})",
            task_names_[span.task], kHostProcess, kFirstIssueTrack + span.thread, Microseconds{span.started},
            Microseconds{span.ended - span.started}, int32_t(span.task), span.instance, span.thread);
    }
  }

  void name_process(int process, const std::string& name, int order) {
    event(R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":{}}}}})", process, quoted(name));
    event(R"({{"ph":"M","name":"process_sort_index","pid":{},"tid":0,"args":{{"sort_index":{}}}}})", process, order);
  }
  void name_thread(Track track, const std::string& name, int order) {
    event(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", track.process, track.thread,
          quoted(name));
    event(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", track.process,
          track.thread, order);
  }

  void write_names() {
    name_process(kHostProcess, "host", 0);
    for (size_t device = 0; device < plan_.devices.size(); ++device) {
      const int process = Tracks::process_of(int32_t(device));
      name_process(process, to_string(plan_.devices[device]), process);
    }
    for (const LaneId i : plan_.lanes.ids()) {
      const Lane& lane = plan_.lanes[i];
      if (lane.kind == Lane::Kind::Host) continue;
      const int track = kFirstLaneTrack + int(i);
      name_thread({Tracks::process_of(lane.device), track}, lane.name, track);
    }
    std::map<LaneId, int> tracks;  // of each lane so far
    for (size_t i = 0; i < host_lanes_.size(); ++i) {
      const std::string& lane = plan_.lanes[host_lanes_[i]].name;
      name_thread({kHostProcess, kFirstHostTrack + int(i)}, fmt::format("{} tasks {}", lane, tracks[host_lanes_[i]]++),
                  kFirstHostTrack + int(i));
    }
    for (int i = 0; i < issue_threads_; ++i) {
      name_thread({kHostProcess, kFirstIssueTrack + i}, fmt::format("issuing {}", i), kFirstIssueTrack + i);
    }
  }

  // An arrow from the end of (u, i − d) to the start of (v, i), for edges that carry data between lanes.
  void write_flows() {
    const SpanIndex index(trace_);
    Table<TaskId, std::vector<const Edge*>> into(plan_.tasks.size());
    for (const Edge& edge : plan_.edges) {
      const bool crosses = plan_.tasks[edge.from].lane != plan_.tasks[edge.to].lane;
      if (crosses && edge.why == Edge::Why::Data) into[edge.to].push_back(&edge);
    }
    int64_t flow = 0;
    for (size_t i = 0; i < trace_.tasks.size() && flow < most_flows_; ++i) {
      const TaskSpan& to = trace_.tasks[i];
      for (const Edge* edge : into[to.task]) {
        const TaskSpan* from = index.find(edge->from, needed_instance(plan_, *edge, to.instance));
        if (from != nullptr && flow < most_flows_)
          flow += write_flow(flow, slices_[size_t(from - trace_.tasks.data())], slices_[i]);
      }
    }
  }

  struct Slice {
    Track track;
    int64_t started = 0, ended = 0;
  };

  // A flow belongs to the slice that is open at its time, so it leaves in the slice's last nanosecond.
  int write_flow(int64_t id, const Slice& from, const Slice& to) {
    if (from.started == from.ended || to.started == to.ended || to.started < from.ended - 1) return 0;
    event(R"({{"ph":"s","cat":"edge","name":"edge","id":{},"pid":{},"tid":{},"ts":{}}})", id, from.track.process,
          from.track.thread, Microseconds{from.ended - 1});
    event(R"({{"ph":"f","bp":"e","cat":"edge","name":"edge","id":{},"pid":{},"tid":{},"ts":{}}})", id, to.track.process,
          to.track.thread, Microseconds{to.started});
    return 1;
  }

  // Slots filled and not yet free again: up where a producer ends, down where the last consumer of that slot ends. A
  // reuse edge consumer → producer names the consumers.
  void write_counters() {
    const SpanIndex index(trace_);
    for (const TaskId producer : plan_.tasks.ids()) {
      const Task& task = plan_.tasks[producer];
      if (task.kind != Task::Kind::Fill && task.kind != Task::Kind::CopyIn) continue;
      std::vector<TaskId> consumers;
      for (const Edge& edge : plan_.edges) {
        if (edge.to == producer && edge.why == Edge::Why::Reuse && edge.relation == kNone) {
          consumers.push_back(edge.from);
        }
      }
      if (!consumers.empty()) write_counter(producer, consumers, index);
    }
  }

  void write_counter(TaskId producer, const std::vector<TaskId>& consumers, const SpanIndex& index) {
    std::vector<std::pair<int64_t, int>> changes;
    for (const TaskSpan* filled : index.of(producer)) {
      int64_t freed = -1;
      for (const TaskId consumer : consumers) {
        const TaskSpan* span = index.find(consumer, filled->instance);
        if (span != nullptr) freed = std::max(freed, span->ended);
      }
      if (freed < 0 && trace_.dropped > 0) continue;  // the consumer's span may be among the dropped
      changes.emplace_back(filled->ended, +1);
      if (freed >= filled->ended) changes.emplace_back(freed, -1);
    }
    std::sort(changes.begin(), changes.end());
    const int process = Tracks::process_of(plan_.lanes[plan_.tasks[producer].lane].device);
    const std::string name = quoted(plan_.tasks[producer].name + " slots");
    int64_t filled = 0;
    for (size_t i = 0; i < changes.size(); ++i) {
      filled += changes[i].second;
      if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
      event(R"({{"ph":"C","name":{},"pid":{},"tid":0,"ts":{},"args":{{"filled":{}}}}})", name, process,
            Microseconds{changes[i].first}, filled);
    }
  }

  // A counter of the series' device for each sample. Viewers name it by the series and, after that, the unit.
  void write_samples() {
    const Sampling& sampling = trace_.sampling;
    for (size_t i = 0; i < sampling.at.size(); ++i) {
      for (size_t k = 0; k < sampling.series.size(); ++k) {
        const SampleSeries& series = sampling.series[k];
        event(R"({{"ph":"C","cat":"sample","name":{},"pid":{},"tid":{},"ts":{},"args":{{{}:{}}}}})",
              quoted(series.name), Tracks::process_of(series.device), k, Microseconds{sampling.at[i]},
              quoted(series.unit), series.values[i]);
      }
    }
  }

  const TraceFile& trace_;
  const Plan& plan_;
  GzipFile file_;
  const int64_t most_flows_;
  Table<TaskId, std::string> task_names_;  // quoted
  std::vector<Slice> slices_;              // as written, by index of trace_.tasks
  std::string text_;
  bool first_ = true;
  std::vector<LaneId> host_lanes_;  // of the host's tracks
  int issue_threads_ = 0;
};

}  // namespace

void write_trace(const TraceFile& trace, const std::string& path, const TraceWriteOptions& options) {
  Writer(trace, path, options).write();
}

}  // namespace arbalest
