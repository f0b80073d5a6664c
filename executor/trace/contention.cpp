// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/contention.h"

#include <algorithm>
#include <set>
#include <vector>

namespace arbalest {

Contention contention_on(int32_t device, const TraceFile& trace, const SteadyState& steady) {
  const Plan& plan = trace.plan;
  Contention contention;
  if (plan.devices[size_t(device)].kind == PlanDevice::Kind::Cpu) return contention;
  std::map<TaskId, std::vector<int64_t>> took;
  std::set<LaneId> lanes;
  for (const TaskSpan& span : trace.tasks) {
    const LaneId lane = plan.tasks[size_t(span.task)].lane;
    if (plan.lanes[size_t(lane)].kind != Lane::Kind::Compute || plan.lanes[size_t(lane)].device != device) continue;
    lanes.insert(lane);
    if (steady.holds(plan, span)) took[span.task].push_back(span.ended - span.started);
  }
  contention.measured = !took.empty();
  for (auto& [task, durations] : took) {
    const auto middle = durations.begin() + std::ptrdiff_t(durations.size() / 2);
    std::nth_element(durations.begin(), middle, durations.end());
    const int64_t alone = trace.alone.empty() ? -1 : trace.alone[size_t(task)];
    contention.measured = contention.measured && alone >= 0;
    const double share = alone < 0 ? 1 / double(lanes.size()) : double(alone) / double(std::max<int64_t>(1, *middle));
    contention.alone[task] = std::min(1.0, share);
  }
  return contention;
}

}  // namespace arbalest
