// SPDX-License-Identifier: Apache-2.0
#include "executor/run/rank_waits.h"

#include <algorithm>
#include <utility>

#include "executor/plan/plan_part.h"

namespace arbalest {

RankWaits::RankWaits(const Plan& part, const Dependencies& dependencies) : part_(part), dependencies_(dependencies) {
  for (const TaskId id : part.tasks.ids()) {
    const Task& task = part.tasks[id];
    if (task.kind == Task::Kind::Collective) together_.push_back({id, {}, ranks_of(part, task.lane)});
    if (task.deferred) together_.push_back({id, {}, part.ranks_of_devices});
  }
  for (Together& each : together_) {
    for (const Edge& edge : part.edges) {
      if (edge.to == each.task) each.from.push_back(edge);
    }
  }
}

std::vector<RankWaits::Wait> RankWaits::look(Time now) {
  const std::vector<Dependencies::Running> running = dependencies_.running();
  const std::scoped_lock lock(mutex_);
  std::vector<Wait> found;
  for (const Together& each : together_) {
    const auto own = std::find_if(running.begin(), running.end(),
                                  [&](const Dependencies::Running& one) { return one.task == each.task; });
    if (own == running.end()) continue;
    const bool held = std::any_of(each.from.begin(), each.from.end(), [&](const Edge& edge) {
      return needed_instance(part_, edge, own->instance) >= dependencies_.ended(edge.from);
    });
    if (held) continue;
    const auto before = std::find_if(waits_.begin(), waits_.end(), [&](const Wait& wait) {
      return wait.task == each.task && wait.instance == own->instance;
    });
    found.push_back({each.task, own->instance, before == waits_.end() ? now : before->since, each.ranks});
  }
  const auto deferred = [this](const Wait& wait) { return part_.tasks[wait.task].deferred; };
  std::stable_sort(found.begin(), found.end(), [&](const Wait& a, const Wait& b) {
    return std::pair(deferred(a), a.since) < std::pair(deferred(b), b.since);
  });
  waits_ = std::move(found);
  return waits_;
}

}  // namespace arbalest
