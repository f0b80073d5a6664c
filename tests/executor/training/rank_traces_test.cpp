// SPDX-License-Identifier: Apache-2.0

// Traces of several processes as one.

#include "executor/training/rank_traces.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "executor/trace/trace_summary.h"
#include "tests/executor/trace/trace_fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace rank_traces_test {
namespace {

// The recording of a rank of this host.
TraceFile trace_of(const std::string& host) {
  TraceFile trace = steady_trace();
  trace.plan.devices[0].host = host;
  for (Lane& lane : trace.plan.lanes) {
    if (lane.device != kNone) lane.name = host + "/" + lane.name;
  }
  trace.launches = {"c"};
  trace.operators = {"Conv"};
  trace.timed = {{0, 2, 500}};
  trace.nodes = {{0, 2, 0, 30'000, 40'000}};
  trace.run.models = {"a GPU of " + host};
  trace.run.clock_error = 700;
  trace.threads = {3, 2};
  trace.sampling = {
      50, "", {10'000, 20'000}, {{"GPU power", 0, "W", 0, {1, 2}}, {"CPU in use", kNone, "cores", 0, {3, 4}}}};
  return trace;
}

}  // namespace

TEST_CASE("what a rank has recorded comes out of its part as it went in") {
  const TraceFile trace = trace_of("a");
  const TraceFile read = unpacked(packed(trace));
  CHECK(read.tasks == trace.tasks);
  CHECK(read.nodes == trace.nodes);
  CHECK(read.issues == trace.issues);
  CHECK(read.timed == trace.timed);
  CHECK(read.sampling == trace.sampling);
  CHECK(read.run == trace.run);
  CHECK(read.launches == trace.launches);
  CHECK(read.plan.devices == trace.plan.devices);
  CHECK(read.plan.tasks.size() == trace.plan.tasks.size());
  const std::string part = packed(trace);
  CHECK_THROWS_AS(unpacked(part.substr(0, part.size() - 1)), RunError);
}

TEST_CASE("times move, and what is unknown stays so") {
  TraceFile trace = steady_trace();
  trace.tasks = {{0, 0, -1, 1'000, 2'000, 3'000}};
  trace.issues = {{1, 0, 5'000, 6'000, 0}};
  trace.nodes.clear();
  move_times(trace, [](int64_t time) { return time - 2'500; });
  CHECK(trace.tasks[0] == TaskSpan{0, 0, -1, 0, 0, 500});
  CHECK(trace.issues[0] == IssueSpan{1, 0, 2'500, 3'500, 0});
}

TEST_CASE("traces of ranks become one, in which each has its devices, lanes and tasks") {
  std::vector<TraceFile> traces = {trace_of("a"), trace_of("b")};
  move_times(traces[1], [](int64_t time) { return time + 15'000; });
  traces[1].run.clock_error = 900;
  const TraceFile all = joined(traces);
  REQUIRE(all.plan.devices.size() == 2);
  CHECK(to_string(all.plan.devices[1]) == "b/cuda:0");
  CHECK(all.plan.lanes[0].name == "a/host");
  CHECK(all.plan.lanes[3].name == "b/host");
  CHECK(all.plan.lanes[5].device == 1);
  REQUIRE(all.plan.tasks.size() == 8);
  CHECK(all.plan.tasks[7].name == "b/report \"epoch\"");
  CHECK(all.plan.tasks[6].lane == LaneId(5));
  CHECK(all.plan.clocks.size() == 2);
  CHECK(all.plan.edges.size() == 2 * traces[0].plan.edges.size());
  CHECK(all.plan.edges.back().from == TaskId(7));
  CHECK(all.run.ranks == 2);
  CHECK(all.run.clock_error == 900);
  CHECK(all.run.models == std::vector<std::string>{"a GPU of a", "a GPU of b"});
  CHECK(all.threads == TraceThreads{6, 4});
  CHECK(all.timed[1] == NodeTime{1, 6, 500});
  CHECK(all.nodes[1] == NodeSpan{1, 6, 0, 45'000, 55'000});
  CHECK(all.issues.back().thread == 1);
  CHECK(std::is_sorted(all.tasks.begin(), all.tasks.end(),
                       [](const TaskSpan& one, const TaskSpan& other) { return one.started < other.started; }));
  // Samples of b at a's times: it had its first 25 us, and its second 35 us, after a began.
  REQUIRE(all.sampling.series.size() == 4);
  CHECK(all.sampling.at == std::vector<int64_t>{10'000, 20'000});
  CHECK(all.sampling.series[1].name == "a/CPU in use");
  CHECK(all.sampling.series[2].device == 1);
  CHECK(all.sampling.series[3].name == "b/CPU in use");
  CHECK(all.sampling.series[3].values == std::vector<double>{3, 3});
}

TEST_CASE("a joined trace is written, read and reported with the uncertainty of its clocks") {
  std::vector<TraceFile> traces = {trace_of("a"), trace_of("b")};
  const TestFolder folder;
  const std::string path = (folder / "t.json.gz").string();
  write_trace(joined(std::move(traces)), path);
  const TraceFile read = read_trace(path);
  CHECK(read.run.ranks == 2);
  CHECK(read.run.clock_error == 700);
  CHECK(to_string(read.plan.devices[0]) == "a/cuda:0");
  CHECK(read.tasks.size() == 240);
  const std::string report = summarize(read);
  check_parts(report, {"Times of 2 ranks are on the clock of rank 0, to within 700 ns.", "iterations "});
}

}  // namespace rank_traces_test
