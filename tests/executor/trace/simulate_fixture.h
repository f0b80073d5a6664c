// SPDX-License-Identifier: Apache-2.0
#pragma once
// Small plans for tests of the simulation, and what running them costs.

#include <string>
#include <utility>
#include <vector>

#include "executor/trace/simulate.h"
#include "tests/executor/plan/random_plan.h"

namespace arbalest::test {

inline constexpr int64_t kTicks = 400;

// Plans whose tasks take what their `microseconds` say, with as many threads as they like.
class Builder {
 public:
  explicit Builder(PlanDevice::Kind kind = PlanDevice::Kind::Cuda) {
    plan.clocks = {{"batch", kTicks}};
    plan.devices = {{kind, 0}};
    plan.lanes.resize(1);
    plan.lanes[0].name = "host";
  }

  LaneId lane(Lane::Kind kind, int32_t device = 0, int32_t learner = kNone) {
    return plan.lanes.push_back({kind, device, learner, "lane " + std::to_string(plan.lanes.size())});
  }
  TaskId host(const std::string& name, double microseconds, int32_t width = 1) {
    const TaskId task = add(name, microseconds, 0);
    plan.tasks[task].width = width;
    edge(task, task, width, Edge::Needs::Done, Edge::Why::Self);
    return task;
  }
  TaskId device(const std::string& name, double microseconds, LaneId lane) {
    const TaskId task = add(name, microseconds, lane);
    plan.tasks[task].device = plan.lanes[lane].device;
    plan.tasks[task].learner = plan.lanes[lane].learner;
    edge(task, task, 1, Edge::Needs::Issued, Edge::Why::Lane);
    return task;
  }
  void edge(TaskId from, TaskId to, int64_t distance, Edge::Needs needs = Edge::Needs::Done,
            Edge::Why why = Edge::Why::Data) {
    add_edge(plan, from, to, distance, kNone, needs);
    plan.edges.back().why = why;
  }

  Plan plan;

 private:
  TaskId add(const std::string& name, double microseconds, LaneId lane) {
    const TaskId task = add_task(plan, name, 0, true);
    plan.tasks[task].microseconds = microseconds;
    plan.tasks[task].lane = lane;
    return task;
  }
};

inline Replay constant(int64_t ns) {
  return std::vector<int64_t>{ns};
}

inline Costs costs_of(const Plan& plan) {
  Costs costs;
  for (const Task& task : plan.tasks) costs.tasks.push_back({constant(int64_t(task.microseconds * 1000)), {}, 0});
  costs.lanes.resize(plan.lanes.size());
  costs.contention.resize(plan.devices.size());
  costs.threads = {1000, 1000};
  return costs;
}

inline double iteration_us(const Plan& plan, const Costs& costs) {
  verify(plan);
  return simulate(plan, costs).steady.iteration_ns / 1000;
}
inline double iteration_us(const Plan& plan) {
  return iteration_us(plan, costs_of(plan));
}

inline constexpr auto kIssued = Edge::Needs::Issued;

// fill (host) → copy → step, with slots between them and a bound on how far the host runs ahead.
struct Pipeline : Builder {
  TaskId fill, copy, step;

  Pipeline(double fill_us, double copy_us, double step_us, int64_t depth, int64_t pace)
      : fill(host("fill", fill_us)),
        copy(device("copy", copy_us, lane(Lane::Kind::CopyIn))),
        step(device("step", step_us, lane(Lane::Kind::Compute, 0, 0))) {
    plan.tasks[fill].kind = Task::Kind::Fill;
    plan.tasks[copy].kind = Task::Kind::CopyIn;
    plan.tasks[step].kind = Task::Kind::Compute;
    edge(fill, copy, 0);
    edge(copy, fill, depth, Edge::Needs::Done, Edge::Why::Reuse);
    edge(copy, step, 0, kIssued);
    edge(step, copy, 2, kIssued, Edge::Why::Reuse);
    edge(step, copy, pace, Edge::Needs::Done, Edge::Why::Pace);
  }
};

}  // namespace arbalest::test
