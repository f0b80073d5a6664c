// SPDX-License-Identifier: Apache-2.0
#include "executor/segment/left_state.h"

#include <algorithm>
#include <set>

namespace arbalest {
namespace {

// The task that writes z_n+1 into the place of z_n−1.
TaskId writer_of(const Plan& plan, BufferId average) {
  for (const TaskId id : plan.tasks.ids()) {
    const Task& task = plan.tasks[id];
    if (task.clock != plan.buffers[average].clock) continue;
    for (int32_t l = task.first_launch; l < task.first_launch + task.launches; ++l) {
      const Launch& launch = plan.launches[size_t(l)];
      const auto output = plan.operands.begin() + launch.first_operand + launch.inputs;
      const auto writes = [&](const Operand& operand) { return operand.buffer == average && operand.shift == 1; };
      if (std::any_of(output, output + launch.outputs, writes)) return id;
    }
  }
  return kNone;
}

// Whether of the tasks of an averaging between hosts some have ended and others have not, apart from those that only
// bring an array for it.
bool is_meeting(const Plan& plan, const std::function<int64_t(TaskId)>& ended) {
  const ClockRelation* by_hosts = plan.relation(plan.handles.by_hosts);
  if (!by_hosts) return false;
  const auto of_hosts = [&](TaskId id) { return plan.tasks[id].clock == by_hosts->coarse; };
  std::set<TaskId> bring;
  for (const Edge& edge : plan.edges) {
    const bool together = of_hosts(edge.from) && of_hosts(edge.to) && edge.distance == 0;
    const auto collective = [&](TaskId id) { return plan.tasks[id].kind == Task::Kind::Collective; };
    if (together && collective(edge.to) && !collective(edge.from)) bring.insert(edge.from);
  }
  std::set<int64_t> counts;
  for (const TaskId id : plan.tasks.ids()) {
    if (of_hosts(id) && !bring.contains(id)) counts.insert(ended(id));
  }
  return counts.size() > 1;
}

}  // namespace

LeftState left_state(const SegmentState& state, const Plan& plan, const SegmentClock& clock,
                     const std::function<int64_t(TaskId)>& ended) {
  const SegmentTimes& times = clock.times();
  LeftState left;
  left.meeting = is_meeting(plan, ended);
  size_t furthest = 0;  // of the devices
  for (size_t device = 0; device < plan.handles.averages.size(); ++device) {
    const int64_t seen = ended(writer_of(plan, plan.handles.averages[device]));
    if (seen > left.averagings) furthest = device;
    left.averagings = std::max(left.averagings, seen);
  }
  int64_t most = 0;
  for (const Replica& replica : plan.handles.loops.front().replicas) {
    const int64_t made = ended(replica.update()) / times.accumulate * times.accumulate;
    LearnerState learner = state.learner(replica, made);
    const bool corrects = !plan.handles.averages.empty();
    const int64_t first = corrects ? times.sync->first_of(left.averagings) : 0;  // after the averages
    if (corrects && made <= first) {
      learner.correction = left.averagings > 0 ? times.strategy.alpha : state.start_of(replica.learner).correction;
    }
    left.run.learners.push_back(std::move(learner));
    left.iterations.push_back(times.from.iteration + made);
    most = std::max(most, made);
  }
  left.run.frozen = state.frozen();
  left.run.moving_average = state.moving_average();
  if (!plan.handles.averages.empty()) {
    left.run.averages.resize(state.average_of(int32_t(furthest)) + 1);
    left.run.averages.back() = state.average(furthest, left.averagings);
  } else {  // their mean is made anew
    left.run.apart = left.run.unaveraged = std::max<int64_t>(1, clock.apart(most));
  }
  left.strategy = times.strategy;
  left.next = clock.cursor(most);
  return left;
}

}  // namespace arbalest
