// SPDX-License-Identifier: Apache-2.0

// Traces: recording, and the file.

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "executor/trace/trace_record.h"
#include "executor/trace/trace_recorder.h"
#include "tests/executor/trace/trace_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace trace_test {
namespace {

// A file in a folder of its own, removed with it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& suffix = ".json.gz") : name_("trace" + suffix) {}
  std::string path() const { return (folder_ / name_).string(); }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  bool is_alone() const { return folder_.names() == std::vector<std::string>{name_}; }

 private:
  const TestFolder folder_;
  const std::string name_;
};

std::string uncompressed(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  std::string text(16 << 20, '\0');
  const int length = gzread(file, text.data(), unsigned(text.size()));
  gzclose(file);
  REQUIRE(length > 0);
  text.resize(size_t(length));
  return text;
}

nlohmann::json events_of(const std::string& path) {
  return nlohmann::json::parse(uncompressed(path)).at("traceEvents");
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
  Plan plan = small_plan();
  plan.arenas = {{"cuda:0/state", 0, Arena::Memory::Device, 4096}};
  TraceRecorder recorder(plan, 8);
  const auto record = [&](TaskId task, int64_t count) {
    for (int64_t i = 0; i < count; ++i) recorder.record(TaskSpan{task, i, 1, 2, 10 * i + 3, 10 * i + 4});
  };
  std::thread other(record, TaskId(1), 20);
  record(0, 5);
  other.join();
  recorder.record(TaskSpan{2, 0, 1, 2, -1, -1});
  recorder.record(IssueSpan{1, 0, 5, 6});

  const TraceFile trace = recorder.collect();
  REQUIRE(trace.plan.arenas.size() == 1);
  CHECK(trace.plan.arenas[0].bytes == 4096);
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

TEST_CASE("on a GPU an instance starts when it is issued and all before it has ended; elsewhere when it says so") {
  Plan plan = small_plan();
  const auto recorded = [&] {
    TraceRecorder recorder(plan);
    recorder.record(TaskSpan{0, 0, 1, 2, 3, 10});       // fill
    recorder.record(TaskSpan{1, 0, 10, 11, 15, 40});    // copy: it had been issued at 15
    recorder.record(TaskSpan{2, 0, 15, 16, 20, 100});   // step: issued at 20, waits for the copy
    recorder.record(TaskSpan{1, 1, 16, 17, 18, 60});    // after the first copy
    recorder.record(TaskSpan{2, 1, 21, 22, 30, 190});   // after the first step
    recorder.record(TaskSpan{2, 2, 31, 32, 400, 390});  // the GPU's clock is behind the host's
    return recorder.collect();
  };
  const TraceFile trace = recorded();
  const SpanIndex index(trace);
  CHECK(index.find(0, 0)->started == 3);
  CHECK(index.find(1, 0)->started == 15);
  CHECK(index.find(2, 0)->started == 40);
  CHECK(index.find(1, 1)->started == 40);
  CHECK(index.find(2, 1)->started == 100);
  CHECK(index.find(2, 2)->started == 390);
  CHECK(trace.unfinished == 0);

  plan.devices = {{PlanDevice::Kind::Cpu, 0}};
  const TraceFile measured = recorded();
  CHECK(SpanIndex(measured).find(2, 0)->started == 20);
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
  trace.operators = {"Conv", "a<\"b"};
  trace.nodes = {{0, 2, 0, 20'000, 50'001}, {1, 2, 0, 50'001, 100'000}};
  trace.run = {"ssgd", 2, 480, 400, SegmentBegin::Resumed, RunEnd::Failed, "the loss \"is\" no longer finite", 512};
  trace.run.command = {"arbalest", "run", "a \"b\".onnxtxt"};
  trace.run.started = "2025-03-01T12:30:00Z";
  trace.run.source = "mnist:data";
  trace.run.precision = "bf16";
  trace.run.batch = 64;
  trace.run.models = {"NVIDIA H200"};
  trace.run.taken_bytes = 9 << 20;
  trace.run.timed_engines = 3;
  trace.dropped = 3;
  trace.unfinished = 4;
  trace.threads = {16, 2};
  trace.reading = {640, 0.125, 1.5, 0.25};
  trace.alone.assign(trace.plan.tasks.size(), -1);
  trace.alone[2] = 40'000;
  trace.timed = {{0, 2, 30'001}, {1, 2, 49'999}};
  trace.sampling = {
      100,
      "GPUs were not sampled",
      {100'000, 200'001, 300'002},
      {{"GPU power", 0, "W", 700, {650.125, 120, 0}}, {"process memory", kNone, "B", 0, {1e9, 2e9, 3e9}}}};
  trace.tasks[0].ready = -1;
  trace.plan.tasks[1].every = 4;
  std::sort(trace.tasks.begin(), trace.tasks.end(),
            [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
  const TemporaryFile file;
  write_trace(trace, file.path());
  CHECK(file.is_alone());

  const TraceFile back = read_trace(file.path());
  CHECK(back.graph == "steady");
  CHECK(back.launches == trace.launches);
  CHECK(back.operators == trace.operators);
  CHECK(back.tasks == trace.tasks);
  CHECK(back.nodes == trace.nodes);
  CHECK(back.run == trace.run);
  CHECK(back.timed == trace.timed);
  CHECK(back.sampling == trace.sampling);
  CHECK(back.issues == trace.issues);
  CHECK(back.dropped == 3);
  CHECK(back.unfinished == 4);
  CHECK(back.threads == trace.threads);
  CHECK(back.reading == trace.reading);
  const TemporaryFile plain(".json");
  write_trace(trace, plain.path());
  CHECK(nlohmann::json::accept(std::ifstream(plain.path())));
  CHECK(read_trace(plain.path()).reading == trace.reading);
  std::string text = uncompressed(file.path());
  REQUIRE(text.find("\"scale\":") != std::string::npos);
  text.replace(text.find("\"scale\":"), 8, "\"transform\":");  // as earlier versions wrote it
  text.replace(text.find("\"run\":"), 6, "\"sun\":");          // which knew nothing of the run
  const TemporaryFile earlier(".json");
  earlier.write(text);
  CHECK(read_trace(earlier.path()).reading == trace.reading);
  CHECK(read_trace(earlier.path()).run == TracedRun{});
  text.replace(text.find("\"sun\":"), 6, "\"run\":");
  text.replace(text.find("\"command\":"), 10, "\"commander\":");  // one that knew not what was asked for
  earlier.write(text);
  CHECK(read_trace(earlier.path()).run.ended_after == 512);
  CHECK(read_trace(earlier.path()).run.batch == 0);
  CHECK(back.alone == trace.alone);
  CHECK(back.plan.devices == trace.plan.devices);
  REQUIRE(back.plan.tasks.size() == trace.plan.tasks.size());
  CHECK(back.plan.tasks[3].name == "report \"epoch\"");
  CHECK(back.plan.tasks[3].kind == Task::Kind::Report);
  CHECK(back.plan.tasks[0].width == 2);
  CHECK(back.plan.tasks[0].every == 1);
  CHECK(back.plan.tasks[1].every == 4);
  REQUIRE(back.plan.edges.size() == trace.plan.edges.size());
  CHECK(back.plan.edges[2].why == Edge::Why::Reuse);
  CHECK(back.plan.edges[2].needs == Edge::Needs::Issued);
  CHECK(back.plan.edges[2].distance == 2);
  CHECK(back.plan.edges[7].relation == RelationId(0));
  CHECK(back.plan.relations[0].period == 10);
  CHECK(back.plan.lanes[2].kind == Lane::Kind::Compute);
}

TEST_CASE("a trace says of each task what it is, and how large arenas are") {
  Plan plan = small_plan();
  plan.arenas = {{"cuda:0/learner 0 activations", 0, Arena::Memory::Device, int64_t{3} << 30},
                 {"pinned batches", kNone, Arena::Memory::Pinned, 0}};
  const std::vector<std::string> names = {"fill",           "copy_in",  "compute",  "average",          "collective",
                                          "snapshot",       "copy_out", "hand_out", "validation_begin", "report",
                                          "validation_end", "work"};
  for (size_t kind = 0; kind < names.size(); ++kind) {
    plan.tasks[0].kind = Task::Kind(kind);
    const nlohmann::json record = plan_record(plan);
    CHECK(record["tasks"][0]["kind"] == names[kind]);
    CHECK(plan_of_record(record).tasks[0].kind == Task::Kind(kind));
  }
  CHECK(names[size_t(Task::Kind::HandOut)] == "hand_out");
  CHECK(names[size_t(Task::Kind::ValidationEnd)] == "validation_end");
  nlohmann::json record = plan_record(plan);
  const Plan back = plan_of_record(record);
  REQUIRE(back.arenas.size() == 2);
  CHECK(back.arenas[0].name == plan.arenas[0].name);
  CHECK(back.arenas[0].bytes == int64_t{3} << 30);
  CHECK(back.arenas[1].memory == Arena::Memory::Pinned);
  CHECK(back.arenas[1].device == kNone);
  record["arenas"][0]["device"] = 1;
  CHECK_THROWS_AS(plan_of_record(record), GraphError);
  record["arenas"][0] = {{"name", "a"}, {"device", 0}, {"memory", "device"}, {"bytes", -1}};
  CHECK_THROWS_AS(plan_of_record(record), GraphError);
  record.erase("arenas");  // as earlier versions wrote it
  CHECK(plan_of_record(record).arenas.empty());
}

TEST_CASE("a trace keeps averaging and collectives apart, and tells them apart in traces that do not") {
  Plan plan;
  plan.devices = {{PlanDevice::Kind::Cuda, 0}, {PlanDevice::Kind::Cuda, 1}};
  plan.lanes = {{Lane::Kind::Averaging, 1, kNone, "cuda:1/averaging"},
                {Lane::Kind::Collectives, kNone, kNone, "collectives"}};
  nlohmann::json record = plan_record(plan);
  CHECK(record["lanes"][0]["kind"] == "averaging");
  CHECK(record["lanes"][1]["kind"] == "collectives");
  for (int i = 0; i < 2; ++i) {
    const Plan back = plan_of_record(record);
    CHECK(back.lanes[0].kind == Lane::Kind::Averaging);
    CHECK(back.lanes[1].kind == Lane::Kind::Collectives);
    record["lanes"][0]["kind"] = "collectives";  // as earlier versions wrote it
  }
}

TEST_CASE("a trace says which processes share a host, and takes each for a host of its own where none does") {
  Plan plan;
  for (const auto& [process, host] : {std::pair("n7.0", 4), {"n7.1", 4}, {"n8", 2}, {"n8", 2}}) {
    plan.devices.push_back({PlanDevice::Kind::Cpu, int(plan.devices.size()), 0, process, host});
  }
  const auto hosts_of = [](const nlohmann::json& record) {
    std::vector<int32_t> hosts;
    for (const PlanDevice& device : plan_of_record(record).devices) hosts.push_back(device.host_number);
    return hosts;
  };
  nlohmann::json record = plan_record(plan);
  CHECK(hosts_of(record) == std::vector<int32_t>{4, 4, 2, 2});
  for (nlohmann::json& device : record["devices"]) device.erase("host_number");  // as earlier versions wrote it
  CHECK(hosts_of(record) == std::vector<int32_t>{0, 1, 2, 2});
  record["devices"][0]["host_number"] = -1;
  CHECK_THROWS_AS(plan_of_record(record), GraphError);
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
  CHECK(message_of(file.path()).find(file.path() + ":2:11: not JSON: syntax error") == 0);
  file.write("{\"traceEvents\":[{\"name\":\"x\"}]}");
  CHECK(message_of(file.path()) == file.path() + ": event 1: key 'ph' not found");
  file.write("{\"traceEvents\":[]}");
  CHECK(message_of(file.path()).find("not written by arbalest") != std::string::npos);
  file.write("{\"event\":\"start\",\"time\":\"2026\"}\n{\"event\":\"end\"}\n");
  CHECK(message_of(file.path()) == file.path() +
                                       ": found a log that run --log wrote, expected a trace that run --trace wrote: "
                                       "it is shown by: arbalest report " +
                                       file.path());
  file.write("[1, 2]");
  CHECK(message_of(file.path()).find("traceEvents") != std::string::npos);
  file.write(
      "{\"traceEvents\":[{\"ph\":\"M\",\"name\":\"arbalest\",\"args\":{\"plan\":{\"devices\":[{\"kind\":\"cpus\","
      "\"index\":0}]}}}]}");
  const std::string message = message_of(file.path());
  CHECK(message.find("event 1") != std::string::npos);
  CHECK(message.find("unknown kind 'cpus'; did you mean 'cpu'?") != std::string::npos);
  TraceFile idle = steady_trace();
  idle.plan.tasks[2].every = 0;
  write_trace(idle, file.path());
  CHECK(message_of(file.path()).find("'every' is 0, expected a whole number from 1") != std::string::npos);
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

}  // namespace trace_test
