// SPDX-License-Identifier: Apache-2.0

// The report of a trace; with several learners, alike lanes and tasks in one line, or each by itself.

#include <doctest/doctest.h>

#include "executor/trace/amounts.h"
#include "executor/trace/simulate.h"
#include "executor/trace/trace_summary.h"
#include "tests/executor/fixture.h"
#include "tests/executor/trace/simulate_fixture.h"
#include "tests/executor/trace/trace_fixture.h"

using namespace arbalest;

namespace trace_report_test {
namespace {

using test::Builder;
using test::contains;
using test::costs_of;
using test::small_plan;
using test::steady_trace;

// Two GPUs with two learners each, and one sum for all. Learner k takes 10 (k + 1) µs for its step, which waits for the
// sum.
TraceFile four_learners() {
  Builder builder;
  builder.plan.devices = {{PlanDevice::Kind::Cuda, 0}, {PlanDevice::Kind::Cuda, 1}};
  const LaneId collectives = builder.lane(Lane::Kind::Collectives, kNone);
  builder.plan.lanes.back().name = "collectives";
  const TaskId sum = builder.device("sum", 5, collectives);
  for (int32_t k = 0; k < 4; ++k) {
    const std::string name = "cuda:" + std::to_string(k / 2) + "/learner " + std::to_string(k);
    const LaneId lane = builder.lane(Lane::Kind::Compute, k / 2, k);
    builder.plan.lanes.back().name = name;
    const TaskId step = builder.device(name + "/step", 10 * (k + 1), lane);
    builder.plan.tasks.back().kind = Task::Kind::Compute;
    builder.edge(step, sum, 0, Edge::Needs::Issued);
    builder.edge(sum, step, 1, Edge::Needs::Issued);
  }
  TraceFile trace;
  trace.plan = builder.plan;
  trace.tasks = simulate(builder.plan, costs_of(builder.plan)).spans;
  return trace;
}

// Processes called a, b, c, … with a GPU and a learner each. The step of the first takes 10 µs, of each other 10 µs
// more.
TraceFile processes(int32_t count) {
  Builder builder;
  builder.plan.devices.clear();
  for (int32_t k = 0; k < count; ++k) {
    const std::string process(1, char('a' + k));
    builder.plan.devices.push_back({PlanDevice::Kind::Cuda, 0, k, process, k});
    const LaneId lane = builder.lane(Lane::Kind::Compute, k, k);
    builder.plan.lanes.back().name = process + "/cuda:0/learner " + std::to_string(k);
    const TaskId step = builder.device(builder.plan.lanes.back().name + "/step", 10 * (k + 1), lane);
    builder.plan.tasks.back().kind = Task::Kind::Compute;
    builder.edge(step, step, 1, Edge::Needs::Issued);
  }
  TraceFile trace;
  trace.plan = builder.plan;
  trace.tasks = simulate(builder.plan, costs_of(builder.plan)).spans;
  return trace;
}

// The line that begins so.
std::string line_of(const std::string& report, const std::string& begin) {
  const size_t at = report.find("\n  " + begin);
  return at == report.npos ? "" : report.substr(at + 3, report.find('\n', at + 1) - at - 3);
}

}  // namespace

TEST_CASE("few processes are reported one by one, many together") {
  const std::string few = summarize(processes(4));
  INFO(few);
  CHECK(contains(line_of(few, "d/cuda:0/learner 3 "), " %"));
  const std::string many = summarize(processes(5));
  INFO(many);
  CHECK(contains(line_of(many, "*/cuda:*/learner * (5) "), "busy from "));
  CHECK(contains(line_of(many.substr(many.find("\nTasks")), "*/cuda:*/learner */step (5)"), "50.0"));
  CHECK(line_of(many, "d/cuda:0/learner 3 ").empty());
  SummaryOptions options;
  options.each = true;
  CHECK(contains(line_of(summarize(processes(5), options), "d/cuda:0/learner 3 "), " %"));
}

TEST_CASE("lanes and tasks of all devices and learners are summed") {
  const std::string report = summarize(four_learners());
  INFO(report);
  // In each iteration of 45 µs, the learners are busy for 10, 20, 30 and 40 µs.
  const std::string lanes = line_of(report, "cuda:*/learner * (4) ");
  CHECK(contains(lanes, "55."));
  CHECK(contains(lanes, "busy from 22."));
  CHECK(contains(lanes, "to 88."));
  CHECK(contains(report, "idle in the steady state: waiting for cuda:1/learner 3/step"));  // which the sum waits for
  const std::string tasks = report.substr(report.find("\nTasks"));
  CHECK(contains(line_of(tasks, "cuda:*/learner */step (4)"), "1\u202f600         25.0         40.0        40.00"));
  CHECK(contains(line_of(tasks, "sum "), "400          5.0          5.0"));
  CHECK(contains(line_of(report.substr(report.find("\nOverlap")), "cuda:*/learner * (4)"),
                 "of its busy time cuda:*/learner * is busy too, on average"));
  CHECK_FALSE(contains(line_of(report, "collectives"), "busy from"));
  // Whichever learner's step the sum waited for, it is one cause.
  CHECK_FALSE(contains(report, "waiting for cuda:1/learner 2/step"));
  CHECK_FALSE(contains(report, "take turns"));

  TraceFile on_cpus = four_learners();
  for (PlanDevice& device : on_cpus.plan.devices) device.kind = PlanDevice::Kind::Cpu;
  CHECK(contains(summarize(on_cpus), "that learners of a CPU device take turns is left out"));
}

TEST_CASE("learners that wait for an average wait for the slowest of them, and the verdict names it") {
  TraceFile trace = four_learners();
  const TraceSummary summary = analyze(trace);
  // Learner 3's step takes 40 of the 45 µs, the sum 5: of the others' 35, 25 and 15 idle µs all but 5 are learner 3's.
  for (const LaneSummary& lane : summary.lanes) {
    const int32_t learner = trace.plan.lanes[lane.lane].learner;
    for (const IdleShare& share : lane.causes) {
      if (learner < 0 || learner == 3 || share.cause != IdleCause::Compute) continue;
      CHECK(double(share.steady_ns) / double(lane.steady_ns) ==
            doctest::Approx((30.0 - 10 * learner) / 45).epsilon(0.02));
    }
  }
  const LaneId slowest = trace.plan.tasks.back().lane;
  CHECK(summary.awaited_ns[slowest] > 0);
  for (const LaneId lane : summary.awaited_ns.ids()) {
    if (lane != slowest) CHECK(summary.awaited_ns[lane] == 0);
  }
  const std::string report = summarize(trace);
  INFO(report);
  CHECK(contains(report, "Bound by learner 3 on cuda:1, the slowest: "));
  CHECK(contains(report, "because a learner was not done computing yet"));
  const std::string cycle = report.substr(report.find("Critical cycle"));  // which agrees
  CHECK(contains(cycle, "cuda:1/learner 3/step"));
}

TEST_CASE("each lane and task may be shown by itself") {
  SummaryOptions options;
  options.each = true;
  const std::string report = summarize(four_learners(), options);
  INFO(report);
  CHECK_FALSE(contains(report, "*/"));
  CHECK(contains(line_of(report, "cuda:0/learner 0 "), "22."));
  CHECK(contains(line_of(report, "cuda:1/learner 3 "), "88."));
  CHECK(contains(line_of(report.substr(report.find("\nTasks")), "cuda:1/learner 3/step"), "400         40.0"));
  CHECK(contains(report, "of its busy time cuda:1/learner 3 is busy too"));
}

TEST_CASE("the report names lanes, tasks, causes and the cycle") {
  const std::string report = summarize(steady_trace());
  for (const char* part :
       {"steady: 120 task instances over 4.00 ms", "iterations 2 to 37: 100 µs each",
        "compute lanes idle between tasks: 19.6 %", "issuing: 4.00 µs of host time per iteration", "cuda:0/learner 0",
        "idle: waiting for copy (batch)", "Slowest instances", "Largest gaps",
        "Critical cycle: no schedule takes less than 80.0 µs per iteration", "step -> step, distance 1"}) {
    INFO(part, "\n", report);
    CHECK(report.find(part) != std::string::npos);
  }
  TraceFile empty;
  empty.plan = small_plan();
  CHECK_THROWS_AS(analyze(empty), GraphError);
}

TEST_CASE("a column of times has one unit: that of the median of those that are not zero") {
  TimeColumn column("mean");
  column.add(13'478'050'000.0);
  column.add(int64_t{66'240'000});
  column.add(int64_t{40'000});
  CHECK(column.heading() == "mean, ms");
  CHECK(column.cell(0) == "13478.05");
  CHECK(column.cell(1) == "66.24");
  CHECK(column.cell(2) == "0.04");
  TimeColumn little("took");
  little.add(900.0);
  CHECK(little.heading() == "took, ns");
  CHECK(little.cell(0) == "900");
  CHECK(TimeColumn("none").heading() == "none, ns");
  TimeColumn mostly_zero("waits");
  for (const double time : {0.0, 0.0, 1'520'222'245.0, 0.0}) mostly_zero.add(time);
  CHECK(mostly_zero.heading() == "waits, s");
  CHECK(mostly_zero.cell(2) == "1.52");
  CHECK(mostly_zero.cell(3) == "0.00");
}

}  // namespace trace_report_test
