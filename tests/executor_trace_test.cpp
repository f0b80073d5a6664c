// Traces: recording, the file, and the analysis of hand-made spans whose answer is known.

#include <doctest/doctest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "executor/trace.h"
#include "executor/trace_summary.h"
#include "graph/error.h"

using namespace arbalest;

namespace {

// fill (host) → copy (copy-in lane) → step (compute lane); copy's slot is free again two iterations on; epoch ends
// report.
Plan small_plan() {
  Plan plan;
  plan.devices = {{PlanDevice::Kind::Cuda, 0}};
  plan.clocks = {{"batch", 40}, {"epoch", 4}};
  plan.relations = {{0, 1, 10, 10}};
  plan.lanes = {{Lane::Kind::Host, kNone, kNone, "host"},
                {Lane::Kind::CopyIn, 0, kNone, "cuda:0/copy in"},
                {Lane::Kind::Compute, 0, 0, "cuda:0/learner 0"}};
  const auto task = [&](const char* name, Task::Kind kind, LaneId lane, ClockId clock, int32_t width) {
    Task added;
    added.name = name;
    added.kind = kind;
    added.lane = lane;
    added.clock = clock;
    added.width = width;
    added.device = lane == 0 ? kNone : 0;
    plan.tasks.push_back(added);
  };
  task("fill", Task::Kind::Fill, 0, 0, 2);
  task("copy", Task::Kind::CopyIn, 1, 0, 1);
  task("step", Task::Kind::Compute, 2, 0, 1);
  task("report \"epoch\"", Task::Kind::Report, 0, 1, 1);
  plan.edges = {{0, 1, 0, kNone, Edge::Needs::Done, Edge::Why::Data, "pinned batch"},
                {1, 2, 0, kNone, Edge::Needs::Issued, Edge::Why::Data, "batch"},
                {2, 1, 2, kNone, Edge::Needs::Issued, Edge::Why::Reuse, "batch slot"},
                {1, 0, 3, kNone, Edge::Needs::Done, Edge::Why::Reuse, "pinned slot"},
                {0, 0, 2, kNone, Edge::Needs::Done, Edge::Why::Self, ""},
                {1, 1, 1, kNone, Edge::Needs::Issued, Edge::Why::Self, ""},
                {2, 2, 1, kNone, Edge::Needs::Issued, Edge::Why::Self, ""},
                {2, 3, 0, 0, Edge::Needs::Done, Edge::Why::Clock, "tallies"},
                {3, 3, 1, kNone, Edge::Needs::Done, Edge::Why::Self, ""}};
  return plan;
}

// Forty iterations of 100 µs. Step i runs from 100 i + 20 to 100 i + 100 (µs), the copy before it for 10 µs up to 100 i
// + 15, so that the compute lane idles 20 % between tasks: 15 µs for the copy, 2 µs unissued, 3 µs unstarted.
TraceFile steady_trace() {
  TraceFile trace;
  trace.plan = small_plan();
  trace.graph = "steady";
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t at = i * 100'000;
    trace.tasks.push_back({0, i, at + 1'000, at + 1'000, at + 1'000, at + 4'000});
    trace.tasks.push_back({1, i, at + 4'000, at + 5'000, at + 5'000, at + 15'000});
    trace.tasks.push_back({2, i, at + 15'000, at + 17'000, at + 20'000, at + 100'000});
    trace.issues.push_back({1, i, at + 4'000, at + 5'000, 0});
    trace.issues.push_back({2, i, at + 15'000, at + 18'000, 0});
  }
  return trace;
}

const LaneSummary& lane(const TraceSummary& summary, LaneId id) {
  for (const LaneSummary& candidate : summary.lanes) {
    if (candidate.lane == id) return candidate;
  }
  throw std::logic_error("no such lane");
}

int64_t reason(const std::vector<IdleReason>& reasons, const std::string& why) {
  for (const IdleReason& candidate : reasons) {
    if (candidate.why == why) return candidate.ns;
  }
  return -1;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& suffix = ".json.gz")
      : path_(std::filesystem::temp_directory_path() /
              ("arbalest-trace-" + std::to_string(getpid()) + "-" + std::to_string(count_++) + suffix)) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

nlohmann::json events_of(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text(16 << 20, '\0');
  const int length = gzread(file, text.data(), unsigned(text.size()));
  gzclose(file);
  REQUIRE(length > 0);
  text.resize(size_t(length));
  return nlohmann::json::parse(text).at("traceEvents");
}

std::string message_of(const std::string& path) {
  try {
    read_trace(path);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("needed instances follow the clocks") {
  const Plan plan = small_plan();
  CHECK(needed_instance(plan, plan.edges[2], 5) == 3);
  CHECK(needed_instance(plan, plan.edges[7], 0) == 9);  // the epoch's last batch
  CHECK(needed_instance(plan, plan.edges[7], 3) == 39);
  const Edge slow_to_fast = {3, 0, 1, 0, Edge::Needs::Done, Edge::Why::Data, ""};
  CHECK(needed_instance(plan, slow_to_fast, 9) == -1);
  CHECK(needed_instance(plan, slow_to_fast, 10) == 0);
}

TEST_CASE("a recorder keeps the newest spans of each thread and counts the dropped") {
  const Plan plan = small_plan();
  TraceRecorder recorder(plan, 8);
  const auto record = [&](TaskId task, int64_t count) {
    for (int64_t i = 0; i < count; ++i) recorder.record(TaskSpan{task, i, 1, 2, 10 * i + 3, 10 * i + 4});
  };
  std::thread other(record, 1, 20);
  record(0, 5);
  other.join();
  recorder.record(TaskSpan{2, 0, 1, 2, -1, -1});
  recorder.record(IssueSpan{1, 0, 5, 6});

  const TraceFile trace = recorder.collect();
  CHECK(trace.dropped == 12);
  CHECK(trace.unfinished == 1);
  REQUIRE(trace.tasks.size() == 13);
  const SpanIndex index(trace);
  CHECK(index.of(0).size() == 5);
  REQUIRE(index.of(1).size() == 8);
  CHECK(index.of(1).front()->instance == 12);
  CHECK(index.find(1, 11) == nullptr);
  CHECK(index.find(1, 19)->started == 193);
  CHECK(trace.issues.size() == 1);
  CHECK(std::is_sorted(trace.tasks.begin(), trace.tasks.end(),
                       [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; }));
}

TEST_CASE("the recorder's clock starts at its construction and moves") {
  const Plan plan = small_plan();
  const TraceRecorder recorder(plan);
  const int64_t first = recorder.now();
  CHECK(first >= 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(recorder.now() - first >= 2'000'000);
}

TEST_CASE("a trace file gives back what was written") {
  TraceFile trace = steady_trace();
  trace.launches = {"conv1", "relu \\ 1"};
  trace.nodes = {{0, 2, 0, 20'000, 50'001}, {1, 2, 0, 50'001, 100'000}};
  trace.dropped = 3;
  trace.unfinished = 4;
  trace.threads = {16, 2};
  trace.alone.assign(trace.plan.tasks.size(), -1);
  trace.alone[2] = 40'000;
  trace.tasks[0].ready = -1;
  std::sort(trace.tasks.begin(), trace.tasks.end(),
            [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
  const TemporaryFile file;
  write_trace(trace, file.path());
  CHECK_FALSE(std::filesystem::exists(file.path() + ".part"));

  const TraceFile back = read_trace(file.path());
  CHECK(back.graph == "steady");
  CHECK(back.launches == trace.launches);
  CHECK(back.tasks == trace.tasks);
  CHECK(back.nodes == trace.nodes);
  CHECK(back.issues == trace.issues);
  CHECK(back.dropped == 3);
  CHECK(back.unfinished == 4);
  CHECK(back.threads == trace.threads);
  CHECK(back.alone == trace.alone);
  CHECK(back.plan.devices == trace.plan.devices);
  REQUIRE(back.plan.tasks.size() == trace.plan.tasks.size());
  CHECK(back.plan.tasks[3].name == "report \"epoch\"");
  CHECK(back.plan.tasks[3].kind == Task::Kind::Report);
  CHECK(back.plan.tasks[0].width == 2);
  REQUIRE(back.plan.edges.size() == trace.plan.edges.size());
  CHECK(back.plan.edges[2].why == Edge::Why::Reuse);
  CHECK(back.plan.edges[2].needs == Edge::Needs::Issued);
  CHECK(back.plan.edges[2].distance == 2);
  CHECK(back.plan.edges[7].relation == 0);
  CHECK(back.plan.relations[0].period == 10);
  CHECK(back.plan.lanes[2].kind == Lane::Kind::Compute);
}

TEST_CASE("slices of a track never overlap, flows lie inside slices and counters return to zero") {
  TraceFile trace = steady_trace();
  // Two fills at once, and a step that seems to begin before the one before it ended.
  trace.tasks.push_back({0, 40, 0, 2'000, 2'000, 3'000});
  trace.tasks.push_back({2, 40, 0, 0, 3'999'000, 4'080'000});
  std::stable_sort(trace.tasks.begin(), trace.tasks.end(),
                   [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
  const TemporaryFile file;
  write_trace(trace, file.path());
  const nlohmann::json events = events_of(file.path());

  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> slices;
  for (const auto& event : events) {
    if (event.at("ph") != "X" || event.at("cat") != "task") continue;
    slices[{event.at("pid"), event.at("tid")}].emplace_back(event.at("ts"),
                                                            double(event.at("ts")) + double(event.at("dur")));
  }
  CHECK(slices.size() == 4);  // two host tracks, copies, compute
  for (auto& [track, list] : slices) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) CHECK(list[i].first >= list[i - 1].second - 1e-6);
  }

  int flows = 0;
  std::map<std::string, int> last_slots, most_slots;
  std::set<std::string> names;
  for (const auto& event : events) {
    const std::string phase = event.at("ph");
    if (phase == "s" || phase == "f") {
      const auto& list = slices.at({event.at("pid"), event.at("tid")});
      const double time = event.at("ts");
      CHECK(std::any_of(list.begin(), list.end(),
                        [&](const auto& slice) { return slice.first <= time && time < slice.second; }));
      flows += phase == "s";
    } else if (phase == "C") {
      const int slots = event.at("args").at("filled");
      last_slots[event.at("name")] = slots;
      most_slots[event.at("name")] = std::max(most_slots[event.at("name")], slots);
      CHECK(slots >= 0);
    } else if (phase == "M" && event.at("name") != "arbalest") {
      if (event.at("args").contains("name")) names.insert(event.at("args").at("name"));
    }
  }
  CHECK(flows == 80);  // fill → copy and copy → step, forty times each
  CHECK(last_slots.at("copy slots") == 0);
  CHECK(most_slots.at("copy slots") == 1);
  CHECK(names == std::set<std::string>{"host", "cuda:0", "cuda:0/copy in", "cuda:0/learner 0", "host tasks 0",
                                       "host tasks 1", "issuing 0"});

  write_trace(trace, file.path(), {.flows = 7});
  const nlohmann::json fewer = events_of(file.path());
  CHECK(std::count_if(fewer.begin(), fewer.end(), [](const auto& event) { return event.at("ph") == "s"; }) == 7);
}

TEST_CASE("files that are no traces are refused with the place") {
  const TemporaryFile file(".json");
  file.write("{\"traceEvents\":[\n{\"ph\":\"X\",]}");
  CHECK(message_of(file.path()).find(file.path() + ":2:11: not JSON") == 0);
  file.write("{\"traceEvents\":[]}");
  CHECK(message_of(file.path()).find("not written by arbalest") != std::string::npos);
  file.write("[1, 2]");
  CHECK(message_of(file.path()).find("traceEvents") != std::string::npos);
  file.write(
      "{\"traceEvents\":[{\"ph\":\"M\",\"name\":\"arbalest\",\"args\":{\"plan\":{\"devices\":[{\"kind\":\"cpus\","
      "\"index\":0}]}}}]}");
  const std::string message = message_of(file.path());
  CHECK(message.find("event 1") != std::string::npos);
  CHECK(message.find("unknown kind 'cpus'; did you mean 'cpu'?") != std::string::npos);
  TraceFile wrong = steady_trace();
  wrong.alone = {1};
  write_trace(wrong, file.path());
  CHECK(message_of(file.path()).find("times alone of 1 tasks, but the plan has") != std::string::npos);
  CHECK_THROWS_AS(read_trace("/nonexistent/trace.json.gz"), RunError);
  CHECK_THROWS_AS(write_trace(steady_trace(), "/nonexistent/trace.json.gz"), RunError);
}

TEST_CASE("a truncated file is an error") {
  const TemporaryFile file;
  write_trace(steady_trace(), file.path());
  std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) / 2);
  CHECK_THROWS_AS(read_trace(file.path()), std::runtime_error);
}

TEST_CASE("the steady state, idleness and its causes") {
  const TraceFile trace = steady_trace();
  const TraceSummary summary = analyze(trace);
  CHECK(summary.begin == 1'000);
  CHECK(summary.end == 4'000'000);
  CHECK(summary.first_steady == 2);
  CHECK(summary.last_steady == 37);
  CHECK(summary.iteration_ns == doctest::Approx(100'000));

  const LaneSummary& compute = lane(summary, 2);
  CHECK(compute.busy_ns == 40 * 80'000);
  CHECK(compute.idle_ns == 3'999'000 - 40 * 80'000);
  CHECK(reason(compute.reasons, "waiting for copy (batch)") == 39 * 15'000);
  CHECK(reason(compute.reasons, "issuing") == 39 * 2'000);
  CHECK(reason(compute.reasons, "starting") == 39 * 3'000);
  CHECK(reason(compute.reasons, "nothing to do (start)") == 19'000);
  CHECK(compute.reasons.front().why == "waiting for copy (batch)");
  // Iterations 2 … 37: 36 steps with 35 gaps between them.
  CHECK(compute.steady_ns == 36 * 80'000 + 35 * 20'000);
  CHECK(compute.steady_idle_ns == 35 * 20'000);
  CHECK(summary.compute_idle == doctest::Approx(35 * 20.0 / (36 * 80 + 35 * 20)));

  // The copy of iteration i waits for its fill; its slot was free long before.
  const LaneSummary& copies = lane(summary, 1);
  CHECK(reason(copies.reasons, "waiting for fill (pinned batch)") == 39 * 89'000);
  int64_t sum = 0;
  for (const IdleReason& part : copies.reasons) sum += part.ns;
  CHECK(sum == copies.idle_ns);

  CHECK(summary.issuing_ns == doctest::Approx(4'000));
  CHECK(summary.issuing_median_ns == doctest::Approx(4'000));
  CHECK(summary.gaps.front().lane == 2);  // the copies' gaps are longer, but compute comes first
  CHECK(summary.gaps.front().to - summary.gaps.front().from == 20'000);
  CHECK(summary.slowest.front()->task == 2);
  CHECK(summary.tasks.front().task == 2);
  CHECK(summary.tasks.front().mean_ns == doctest::Approx(80'000));
  CHECK(summary.tasks.front().count == 40);
}

TEST_CASE("pace and slots as causes") {
  TraceFile trace;
  trace.plan = small_plan();
  trace.plan.edges.push_back({2, 0, 1, kNone, Edge::Needs::Done, Edge::Why::Pace, ""});
  trace.tasks = {{1, 0, 0, 0, 0, 10}, {2, 0, 10, 10, 10, 50}, {1, 2, 60, 60, 60, 70}, {0, 1, 50, 50, 52, 55}};
  std::sort(trace.tasks.begin(), trace.tasks.end(),
            [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
  const TraceSummary summary = analyze(trace);
  CHECK(reason(lane(summary, 1).reasons, "waiting for step (to free batch slot)") == 40);
  CHECK(reason(lane(summary, 1).reasons, "completion not yet noticed") == 10);
  CHECK(reason(lane(summary, 0).reasons, "nothing to do (start)") == 52);

  trace.tasks.insert(trace.tasks.begin(), {0, 0, 0, 0, 0, 5});
  CHECK(reason(lane(analyze(trace), 0).reasons, "pace (step)") == 45);
}

TEST_CASE("overlap is measured against the first lane's busy time") {
  TraceFile trace;
  trace.plan = small_plan();
  trace.tasks = {{1, 0, 0, 0, 0, 100}, {2, 0, 0, 0, 75, 175}, {0, 0, 0, 0, 80, 90}, {0, 1, 0, 0, 85, 180}};
  const TraceSummary summary = analyze(trace);
  const auto share = [&](LaneId a, LaneId b) {
    for (const Overlap& overlap : summary.overlaps) {
      if (overlap.lane == a && overlap.other == b) return overlap.share;
    }
    return -1.0;
  };
  CHECK(share(1, 2) == doctest::Approx(0.25));
  CHECK(share(2, 1) == doctest::Approx(0.25));
  CHECK(share(0, 2) == doctest::Approx(0.95));
  CHECK(lane(summary, 0).busy_ns == 100);  // two host tasks at once count once
}

// Two devices with a learner each; collectives over both, averaging on the first, copies to the first, validation on
// the second. Times in ns.
TraceFile averaged_trace() {
  TraceFile trace;
  Plan& plan = trace.plan;
  plan.devices = {{PlanDevice::Kind::Cuda, 0}, {PlanDevice::Kind::Cuda, 1}};
  plan.clocks = {{"batch", 10}};
  plan.lanes = {
      {Lane::Kind::Compute, 0, 0, "cuda:0/learner 0"},   {Lane::Kind::Compute, 1, 1, "cuda:1/learner 1"},
      {Lane::Kind::Collectives, kNone, kNone, "fabric"}, {Lane::Kind::Collectives, 0, kNone, "cuda:0/averaging"},
      {Lane::Kind::CopyIn, 0, kNone, "cuda:0/copy in"},  {Lane::Kind::Validate, 1, kNone, "cuda:1/validation"}};
  const auto task = [&](const char* name, LaneId lane) {
    Task added;
    added.name = name;
    added.lane = lane;
    plan.tasks.push_back(added);
    return TaskId(plan.tasks.size() - 1);
  };
  const TaskId backward[] = {task("backward 0", 0), task("backward 1", 1)};
  const TaskId update[] = {task("update 0", 0), task("update 1", 1)};
  const TaskId reduce = task("all-reduce", 2), average = task("average", 3), copy = task("copy", 4);
  const TaskId evaluate = task("evaluate", 5);
  for (const TaskId to : update)
    plan.edges.push_back({reduce, to, 0, kNone, Edge::Needs::Issued, Edge::Why::Data, "mean"});
  for (int k = 0; k < 2; ++k) {
    plan.edges.push_back({backward[k], update[k], 0, kNone, Edge::Needs::Issued, Edge::Why::Lane, ""});
  }
  trace.tasks = {{average, 0, 0, 0, 0, 30},        {backward[0], 0, 0, 0, 0, 100}, {backward[1], 0, 0, 0, 0, 90},
                 {reduce, 0, 60, 60, 60, 120},     {evaluate, 0, 95, 95, 95, 135}, {update[0], 0, 60, 60, 130, 150},
                 {update[1], 0, 60, 60, 130, 140}, {copy, 0, 140, 140, 140, 160}};
  return trace;
}

TEST_CASE("what runs beside compute is hidden or awaited") {
  const TraceFile trace = averaged_trace();
  const TraceSummary summary = analyze(trace);
  const auto of = [&](LaneId lane, Lane::Kind kind) {
    for (const Hiding& hiding : summary.hiding) {
      if (hiding.lane == lane && hiding.kind == kind) return hiding;
    }
    throw std::logic_error("no such lane");
  };
  // Some learner is busy up to 100 and from 130: 40 of the all-reduce's 60 are hidden. It ends at 120; learner 0 has
  // waited since 100, learner 1 since 90.
  const Hiding fabric = of(2, Lane::Kind::Collectives);
  CHECK(fabric.busy_ns == 60);
  CHECK(fabric.hidden_ns == 40);
  CHECK(fabric.share() == doctest::Approx(2.0 / 3));
  CHECK(fabric.waited_ns == 20 + 30);
  CHECK(of(3, Lane::Kind::Collectives).hidden_ns == 30);
  CHECK(of(3, Lane::Kind::Collectives).waited_ns == 0);
  const Hiding all = of(kNone, Lane::Kind::Collectives);
  CHECK(all.busy_ns == 90);
  CHECK(all.hidden_ns == 70);
  CHECK(all.waited_ns == 50);
  // Only the lane's own device counts.
  CHECK(of(4, Lane::Kind::CopyIn).hidden_ns == 10);
  CHECK(of(5, Lane::Kind::Validate).hidden_ns == 5);
  CHECK(summary.hiding.size() == 5);  // lanes beside compute, and collectives as a whole

  const std::string report = summarize(trace, {.each = true});
  for (const char* part : {"Beside compute              busy   hidden  compute waits",
                           "fabric                   60 ns   66.7 %          50 ns",
                           "all collectives          90 ns   77.8 %          50 ns"}) {
    INFO(part, "\n", report);
    CHECK(report.find(part) != std::string::npos);
  }
}

// The copy waits 85 µs for the next batch, 80 of which the step has the thread.
TEST_CASE("lanes of a CPU device wait for the one that has their thread") {
  TraceFile trace = steady_trace();
  for (PlanDevice& device : trace.plan.devices) device.kind = PlanDevice::Kind::Cpu;
  const TraceSummary summary = analyze(trace);
  const std::string step = "thread busy with " + trace.plan.lanes[2].name;
  CHECK(reason(lane(summary, 1).reasons, step) == 39 * 80'000);
  CHECK(reason(lane(analyze(steady_trace()), 1).reasons, step) == -1);  // a GPU's lanes have no thread
}

TEST_CASE("the critical cycle comes from mean durations of the steady state") {
  // copy → step → copy of distance 2: (10 + 80) µs over two iterations; step → step: 80 µs over one.
  TraceFile trace = steady_trace();
  for (TaskSpan& span : trace.tasks) {
    if (span.instance == 0) span.started -= 1'000'000;  // a first run loads what it needs
  }
  const TraceSummary summary = analyze(trace);
  REQUIRE(summary.critical.edges.size() == 1);
  CHECK(summary.critical.bound() == doctest::Approx(80));
}

TEST_CASE("the report names lanes, tasks, causes and the cycle") {
  const std::string report = summarize(steady_trace());
  for (const char* part :
       {"steady: 120 task instances over 4.00 ms", "iterations 2 to 37: 100.0 µs each",
        "compute lanes idle between tasks: 19.6 %", "issuing: 4.0 µs of host time per iteration", "cuda:0/learner 0",
        "idle: waiting for copy (batch)", "Slowest instances", "Largest gaps",
        "Critical cycle: no schedule takes less than 80.0 µs per iteration", "step -> step, distance 1"}) {
    INFO(part, "\n", report);
    CHECK(report.find(part) != std::string::npos);
  }
  TraceFile empty;
  empty.plan = small_plan();
  CHECK_THROWS_AS(analyze(empty), GraphError);
}
