// SPDX-License-Identifier: Apache-2.0

// Traces whose numbers are wrong: refused where they are read, so that no later code divides by zero, indexes out of
// bounds, or works and allocates beyond measure.

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "executor/trace/steady_state.h"
#include "executor/trace/trace_record.h"
#include "executor/trace/trace_summary.h"
#include "tests/executor/trace/trace_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace hostile_trace_test {
namespace {

using nlohmann::json;

// A trace of three iterations, as its file states it.
json small_trace() {
  TraceFile trace;
  trace.plan = small_plan();
  json events = json::array();
  events.push_back({{"ph", "M"},
                    {"name", "arbalest"},
                    {"args",
                     {{"plan", plan_record(small_plan())},
                      {"graph", "g"},
                      {"launches", {"n0", "n1"}},
                      {"threads", {{"host", 2}, {"issuing", 2}}},
                      {"dropped", 0},
                      {"unfinished", 0}}}});
  for (int64_t i = 0; i < 3; ++i) {
    for (int task = 0; task < 3; ++task) {
      events.push_back({{"ph", "X"},
                        {"cat", "task"},
                        {"ts", 100 * i + 30 * task},
                        {"dur", 20},
                        {"args", {{"task", task}, {"iteration", i}, {"ready", 100 * i}, {"issued", 100 * i}}}});
    }
  }
  events.push_back(
      {{"ph", "X"}, {"cat", "issue"}, {"ts", 1}, {"dur", 1}, {"args", {{"task", 1}, {"iteration", 0}, {"thread", 0}}}});
  events.push_back(
      {{"ph", "X"}, {"cat", "node"}, {"ts", 1}, {"dur", 1}, {"args", {{"launch", 1}, {"task", 2}, {"iteration", 0}}}});
  return {{"traceEvents", events}};
}

std::string refusal(const std::function<void(json&, json&)>& change) {
  const TestFolder folder;
  json trace = small_trace();
  change(trace["traceEvents"], trace["traceEvents"][0]["args"]["plan"]);
  const auto path = folder.write("t.json", trace.dump());
  const std::string message = message_of<GraphError>([&] { read_trace(path); });
  CHECK(message.find("t.json") != std::string::npos);
  CHECK(message.size() < 1000);
  return message;
}

}  // namespace

TEST_CASE("a trace with right numbers is read and summarised") {
  const TestFolder folder;
  const TraceFile trace = read_trace(folder.write("t.json", small_trace().dump()));
  CHECK(trace.tasks.size() == 9);
  CHECK(summarize(trace, {}).size() > 100);
}

TEST_CASE("a trace's plan is refused where a number is out of bounds") {
  const int64_t most = INT64_MAX, least = INT64_MIN;
  const auto plan_with = [](const char* list, size_t index, const char* key, const json& value) {
    return refusal([&](json&, json& plan) { plan[list][index][key] = value; });
  };
  for (const json& group : {json(most), json(0), json(-1), json(1e300), json(2.5), json("ten"), json(UINT64_MAX)}) {
    check_parts(plan_with("relations", 0, "group", group), {"relations", "'group' is", "from 1 to"});
    check_parts(plan_with("relations", 0, "period", group), {"'period' is"});
  }
  for (const json& distance : {json(least), json(-1), json(most)}) {
    check_parts(plan_with("edges", 0, "distance", distance), {"edges", "'distance' is", "from 0 to"});
  }
  check_parts(plan_with("clocks", 0, "ticks", 0), {"makes no tick"});
  check_parts(plan_with("clocks", 1, "ticks", -1), {"'ticks' is -1"});
  check_parts(plan_with("clocks", 1, "ticks", most), {"'ticks' is"});
  check_parts(plan_with("tasks", 0, "width", 0), {"tasks", "'width' is 0"});
  check_parts(plan_with("tasks", 0, "every", 0), {"'every' is 0"});
  check_parts(plan_with("tasks", 0, "lane", 3), {"lane 3 is out of range"});
  check_parts(plan_with("tasks", 0, "clock", 1e10), {"'clock' is"});
  check_parts(plan_with("tasks", 0, "device", 1), {"device 1 is out of range"});
  check_parts(plan_with("edges", 0, "from", -1), {"task -1 is out of range"});
  check_parts(plan_with("edges", 0, "relation", 1), {"relation 1 is out of range"});
  check_parts(plan_with("edges", 0, "relation", 0), {"edge from 'fill' to 'copy'", "not one of their clocks"});
  check_parts(refusal([](json&, json& plan) {
                plan["clocks"][0]["ticks"] = plan["relations"][0]["period"] = int64_t{1} << 30;
              }),
              {"longer than can be looked at"});
}

TEST_CASE("a trace that is nested deep is refused as it is read") {
  const TestFolder folder;
  std::string text = small_trace().dump();
  const std::string task = "\"task\":0";
  REQUIRE(text.find(task) != std::string::npos);
  text.replace(text.find(task), task.size(), "\"task\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']'));
  const auto path = folder.write("t.json", text);
  check_parts(message_of<GraphError>([&] { read_trace(path); }), {"t.json", "nested more than 16 deep"});
}

TEST_CASE("a trace that is empty or cut off says so") {
  const TestFolder folder;
  const std::string empty = folder.write("t.json", std::string());
  CHECK(message_of<GraphError>([&] { read_trace(empty); }) ==
        empty + ": found an empty file, expected a trace that run --trace wrote");
  const std::string cut = folder.write("t.json.gz", std::string("\x1f\x8b"));
  CHECK(message_of<RunError>([&] { read_trace(cut); }) == cut + ": cannot be read: unexpected end of file");
}

TEST_CASE("a place in a long trace is reported by line and column") {
  const TestFolder folder;
  std::string text = "{\"traceEvents\":[\n";
  constexpr int kLines = 100'000;  // more than is read at once
  for (int i = 0; i < kLines; ++i) text += "{\"ph\":\"i\",\"cat\":\"\"},\n";
  REQUIRE(text.size() > 2 << 20);
  text += "  {\"ph\":!}]}";
  const std::string path = folder.write("t.json", text);
  check_parts(message_of<GraphError>([&] { read_trace(path); }),
              {path + ":" + std::to_string(kLines + 2) + ":9: not JSON"});
}

TEST_CASE("only the list of events has events") {
  const TestFolder folder;
  json trace = small_trace();
  const size_t tasks = read_trace(folder.write("t.json", trace.dump())).tasks.size();
  trace["a list before it"] = json::array({{{"ph", 1}}, {{"args", {{"task", "none"}}}}});
  trace["traceEvents"].push_back({{"ph", "i"}, {"args", {{"lists", {1, {{"args", 2}}}}}}});
  trace["traceEvents"].push_back(json::array({{{"ph", 2}}}));
  CHECK(read_trace(folder.write("t.json", trace.dump())).tasks.size() == tasks);
}

TEST_CASE("a number that no double holds is refused with the file's name, and not in the library's words") {
  const TestFolder folder;
  std::string text = small_trace().dump();
  const std::string duration = "\"dur\":20";
  REQUIRE(text.find(duration) != std::string::npos);
  text.replace(text.find(duration), duration.size(), "\"dur\":1e999");
  const std::string path = folder.write("t.json", text);
  CHECK(message_of<GraphError>([&] { read_trace(path); }) == path + ": number overflow parsing '1e999'");
}

TEST_CASE("a trace has one record: what the first one says of devices would outlive their list") {
  check_parts(refusal([](json& events, json&) {
                json other = events[0];
                other["args"]["plan"]["devices"] = json::array();
                events.push_back(other);
              }),
              {"a second record 'arbalest'"});
}

TEST_CASE("a trace is refused where sums of its times would wrap") {
  constexpr double kLongest = 1e13;  // µs, of an event
  check_parts(refusal([&](json& events, json&) {
                events[1]["ts"] = 0;
                events[1]["dur"] = kLongest;
                for (int i = 0; i < 100; ++i) events.push_back(events[1]);
              }),
              {"takes 1.01e+09 s", "at most 1e+09 s"});
  const TestFolder folder;
  json long_one = small_trace();
  long_one["traceEvents"][1]["dur"] = kLongest;
  CHECK_NOTHROW(summarize(read_trace(folder.write("t.json", long_one.dump())), {}));
}

TEST_CASE("a trace's events are refused where a number is out of bounds") {
  const auto event_with = [](size_t index, const char* key, const json& value) {
    return refusal([&](json& events, json&) { events[index][key] = value; });
  };
  const auto args_with = [](size_t index, const char* key, const json& value) {
    return refusal([&](json& events, json&) { events[index]["args"][key] = value; });
  };
  constexpr size_t kTask = 1, kIssue = 10, kNode = 11;
  check_parts(event_with(kTask, "ph", 3), {"event 2", "'ph' is of type number, expected a text"});
  check_parts(event_with(kTask, "ts", nullptr), {"event 2", "'ts' is of type null, expected a number"});
  check_parts(event_with(kTask, "ts", 1e300), {"event 2", "'ts' is 1e+300", "µs"});
  check_parts(event_with(kTask, "dur", -1), {"'dur' is -1"});
  check_parts(event_with(kTask, "dur", 1e300), {"'dur' is"});
  check_parts(args_with(kTask, "task", 4), {"task 4, but the plan has 4"});
  check_parts(args_with(kTask, "task", -1), {"'task' is -1"});
  check_parts(args_with(kTask, "iteration", 1'000'000'000), {"instance 1000000000", "makes 40 ticks"});
  check_parts(args_with(kTask, "iteration", -1), {"'iteration' is -1"});
  check_parts(args_with(kTask, "ready", 1e300), {"'ready' is"});
  check_parts(args_with(kIssue, "thread", 1'000'000'000), {"'thread' is"});
  check_parts(args_with(kNode, "launch", 2), {"launch 2", "has 2"});
  check_parts(args_with(0, "dropped", -1), {"'dropped' is -1"});
  const auto timed = [&](std::vector<int> launch, std::vector<int> task) {
    return args_with(0, "timed", {{"launch", std::move(launch)}, {"task", std::move(task)}, {"ns", {100}}});
  };
  check_parts(timed({2}, {2}), {"'timed' names launch 2", "has 2"});
  check_parts(timed({-1}, {2}), {"'timed' names launch -1"});
  check_parts(timed({0}, {4}), {"'timed' names task 4", "has 4"});
  check_parts(timed({0, 1}, {2}), {"2, 1 and 1 elements"});
  const auto sampled = [&](std::vector<std::pair<int, double>> samples, int device = 0) {  // (series, ts) of each
    return refusal([&](json& events, json&) {
      const json power = {{"name", "power"}, {"device", device}, {"unit", "W"}, {"most", 700}};
      events[0]["args"]["sampling"] = {{"interval_ms", 100}, {"note", ""}, {"series", {power, power}}};
      for (const auto& [series, ts] : samples) {
        events.push_back({{"ph", "C"},
                          {"cat", "sample"},
                          {"name", "p"},
                          {"pid", 2},
                          {"tid", series},
                          {"ts", ts},
                          {"args", {{"W", 5}}}});
      }
    });
  };
  check_parts(sampled({{2, 1}}), {"'tid' is 2"});
  check_parts(sampled({{1, 1}}), {"a sample of 'power' has another time than those of the other series"});
  check_parts(sampled({{0, 1}, {1, 2}}), {"a sample of 'power' has another time"});
  check_parts(sampled({{0, 1}}), {"'power' has 0 samples, but there are 1"});
  check_parts(sampled({{0, 2}, {1, 2}, {0, 1}, {1, 1}}), {"not in the order of time"});
  check_parts(sampled({}, 1), {"'device' is 1"});
  check_parts(refusal([](json& events, json&) { events[0]["args"]["threads"]["host"] = 1'000'000'000; }),
              {"'host' is 1000000000"});
}

TEST_CASE("iterations that lie far apart take no more memory than adjacent ones") {
  Plan plan = small_plan();
  plan.clocks[0].ticks = int64_t{1} << 31;
  std::vector<TaskSpan> spans;
  for (const int64_t iteration : {int64_t{0}, int64_t{1}, int64_t{2'000'000'000}}) {
    for (TaskId task = 0; task < 3; ++task) spans.push_back({task, iteration, -1, -1, iteration, iteration + 10});
  }
  const SteadyState steady = find_steady_state(plan, spans, 0);
  CHECK(steady.first == 0);
  CHECK(steady.last == 2'000'000'000);
  CHECK(steady.iteration_ns == 1);
}

}  // namespace hostile_trace_test
