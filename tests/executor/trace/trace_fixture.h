// SPDX-License-Identifier: Apache-2.0
#pragma once
// A small plan and a trace of it whose figures are known.

#include "executor/trace/trace_file.h"

namespace arbalest::test {

// fill (host) → copy (copy-in lane) → step (compute lane); copy's slot is free again two iterations on; epoch ends
// report.
inline Plan small_plan() {
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
// + 15. So the compute lane idles 20 % between tasks. That is 15 µs for the copy, 2 µs unissued, 3 µs unstarted.
inline TraceFile steady_trace() {
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

}  // namespace arbalest::test
