// SPDX-License-Identifier: Apache-2.0

// The analysis of hand-made spans whose answer is known.

#include <doctest/doctest.h>

#include <stdexcept>

#include "executor/trace/trace_summary.h"
#include "tests/executor/trace/trace_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace trace_summary_test {
namespace {

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

}  // namespace

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
  CHECK(reason(compute.reasons, "waiting for copy (batch)") == 39 * 11'000);
  CHECK(reason(compute.reasons, "waiting for fill (pinned batch)") == 39 * 4'000);
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
  CHECK(summary.gaps.front().lane == LaneId(2));  // the copies' gaps are longer, but compute comes first
  CHECK(summary.gaps.front().to - summary.gaps.front().from == 20'000);
  CHECK(summary.slowest.front()->task == TaskId(2));
  CHECK(summary.tasks.front().task == TaskId(2));
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

// Two devices with a learner each; collectives over both, averaging on each, copies to the first, validation on
// the second. Times in ns.
TraceFile averaged_trace() {
  TraceFile trace;
  Plan& plan = trace.plan;
  plan.devices = {{PlanDevice::Kind::Cuda, 0}, {PlanDevice::Kind::Cuda, 1}};
  plan.clocks = {{"batch", 10}};
  plan.lanes = {
      {Lane::Kind::Compute, 0, 0, "cuda:0/learner 0"},      {Lane::Kind::Compute, 1, 1, "cuda:1/learner 1"},
      {Lane::Kind::Collectives, kNone, kNone, "fabric"},    {Lane::Kind::Averaging, 0, kNone, "cuda:0/averaging"},
      {Lane::Kind::CopyIn, 0, kNone, "cuda:0/copy in"},     {Lane::Kind::Validate, 1, kNone, "cuda:1/validation"},
      {Lane::Kind::Averaging, 1, kNone, "cuda:1/averaging"}};
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
  const TaskId evaluate = task("evaluate", 5), average_1 = task("average 1", 6);
  for (const TaskId to : update)
    plan.edges.push_back({reduce, to, 0, kNone, Edge::Needs::Issued, Edge::Why::Data, "mean"});
  for (int k = 0; k < 2; ++k) {
    plan.edges.push_back({backward[k], update[k], 0, kNone, Edge::Needs::Issued, Edge::Why::Lane, ""});
  }
  trace.tasks = {{average, 0, 0, 0, 0, 30},        {backward[0], 0, 0, 0, 0, 100}, {backward[1], 0, 0, 0, 0, 90},
                 {reduce, 0, 60, 60, 60, 120},     {evaluate, 0, 95, 95, 95, 135}, {update[0], 0, 60, 60, 130, 150},
                 {update[1], 0, 60, 60, 130, 140}, {copy, 0, 140, 140, 140, 160},  {average_1, 0, 80, 80, 80, 100}};
  return trace;
}

TEST_CASE("what runs at the same time as compute is hidden or awaited") {
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
  // Only the lane's own device counts.
  CHECK(of(3, Lane::Kind::Averaging).hidden_ns == 30);
  CHECK(of(6, Lane::Kind::Averaging).hidden_ns == 10);
  const Hiding all = of(kNone, Lane::Kind::Averaging);
  CHECK(all.busy_ns == 50);
  CHECK(all.hidden_ns == 40);
  CHECK(all.waited_ns == 0);
  CHECK(of(4, Lane::Kind::CopyIn).hidden_ns == 10);
  CHECK(of(5, Lane::Kind::Validate).hidden_ns == 5);
  CHECK(summary.hiding.size() == 6);  // lanes other than compute, and averaging as a whole

  const std::string report = summarize(trace, {.each = true});
  for (const char* part : {"Other lanes             busy, ns   hidden  compute waits, ns",
                           "fabric                      60   66.7 %                 50",
                           "all averaging               50   80.0 %                  0"}) {
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

TEST_CASE("instances without work are not counted") {
  TraceFile trace = steady_trace();
  trace.plan.tasks[2].every = 4;
  for (TaskSpan& span : trace.tasks) {
    if (span.task == 2 && span.instance % 4 != 3) span.ended = span.started;
  }
  const TraceSummary summary = analyze(trace);
  const auto step = std::find_if(summary.tasks.begin(), summary.tasks.end(), [](const auto& t) { return t.task == 2; });
  REQUIRE(step != summary.tasks.end());
  CHECK(step->count == 10);
  CHECK(step->mean_ns == 80'000);
  CHECK(step->total_ns == 800'000);
}

TEST_CASE("the critical cycle comes from mean durations of the steady state") {
  // copy → step → copy of distance 2: (10 + 80) µs over two iterations; step → step: 80 µs over one.
  TraceFile trace = steady_trace();
  const int64_t first = analyze(trace).first_steady;
  REQUIRE(first > 0);
  for (TaskSpan& span : trace.tasks) {
    if (span.instance == 0) span.started -= 1'000'000;  // a first run loads what it needs
    // The time per iteration is measured from where the steady state's first one ends.
    if (span.instance == first) span.started -= 1'000'000;
  }
  const TraceSummary summary = analyze(trace);
  REQUIRE(summary.critical.edges.size() == 1);
  CHECK(summary.critical.bound() == doctest::Approx(80));
}

}  // namespace trace_summary_test
