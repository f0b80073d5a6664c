// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/quote/plan_costs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "graph/op.h"

namespace arbalest {
namespace {

constexpr double kWarmUp = 0.05;  // share of the profile's iterations that is left out at each end

// The name of a task or node without the numbers of its device, learner and part: "cuda:3/learner 12/step" and
// "cuda:0/learner 0/step" are the same.
std::string without_numbers(const std::string& name) {
  std::string text;
  for (size_t at = 0; at < name.size(); ++at) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[at])) != 0;
    const bool numbered = text.ends_with("learner ") || text.ends_with("cpu:") || text.ends_with("cuda:") ||
                          text.ends_with("fill ") || text.ends_with("#");
    if (digit && numbered) {
      if (!text.ends_with("#")) text += '#';
    } else {
      text += name[at];
    }
  }
  return text;
}

class PlanCosts {
 public:
  PlanCosts(const Plan& plan, int64_t learners, const TraceFile& profile, const WorldLinks& links)
      : plan_(plan), profile_(profile), links_(links), learners_(learners) {
    const SteadyState steady = find_steady_state(profile.plan, profile.tasks, kWarmUp);
    if (steady.iteration_ns <= 0) throw GraphError("the profile has too few iterations");
    measured_ = measure_costs(profile, steady);
    find_means(steady);
    find_step();
    for (const Task& task : plan.tasks) parts_ = std::max(parts_, task.parts);
    for (const Task& task : profile.plan.tasks) profile_parts_ = std::max(profile_parts_, task.parts);
    find_bandwidth();
  }

  Costs run() {
    Costs costs;
    for (TaskId task = 0; task < TaskId(plan_.tasks.size()); ++task) costs.tasks.push_back(costs_of(task));
    for (const Lane& lane : plan_.lanes) {
      const auto& lanes = profile_.plan.lanes;
      const auto like =
          std::find_if(lanes.begin(), lanes.end(), [&](const Lane& other) { return other.kind == lane.kind; });
      costs.lanes.push_back(like == lanes.end() ? LaneCosts() : measured_.lanes[size_t(like - lanes.begin())]);
    }
    costs.contention.resize(plan_.devices.size());
    costs.threads = measured_.threads;
    return costs;
  }

 private:
  // Mean durations of the profile's tasks, in ns, and its tasks by name.
  void find_means(const SteadyState& steady) {
    std::vector<double> sums(profile_.plan.tasks.size(), 0);
    std::vector<int64_t> counts(sums.size(), 0);
    for (const TaskSpan& span : profile_.tasks) {
      if (!steady.holds(profile_.plan, span)) continue;
      sums[size_t(span.task)] += double(span.ended - span.started);
      ++counts[size_t(span.task)];
    }
    for (size_t task = 0; task < sums.size(); ++task) {
      means_.push_back(counts[task] > 0 ? sums[task] / double(counts[task]) : 0);
      by_name_.try_emplace(without_numbers(profile_.plan.tasks[task].name), TaskId(task));
    }
  }

  // The nodes of the first learner's step, and how much longer its tasks take than these.
  void find_step() {
    for (size_t task = 0; task < profile_.plan.tasks.size(); ++task) {
      const Task& known = profile_.plan.tasks[task];
      if (known.kind != Task::Kind::Compute || known.learner > 0) continue;
      step_ns_ += means_[task];
      step_launches_ += known.launches;
      double shares = 0;
      for (const NodeShare& node : measured_.tasks[task].nodes) shares += node.share;
      for (const NodeShare& node : measured_.tasks[task].nodes) {
        const std::string& name = measured_.launches[size_t(node.launch)];
        nodes_[without_numbers(name)] += means_[task] * node.share / shares;
      }
    }
  }

  const Node& node_of(const Launch& launch) const {
    return plan_.graphs[size_t(launch.program)].nodes[size_t(launch.node)];
  }
  double bytes_of(const Launch& launch) const {
    return cost_of(plan_.graphs[size_t(launch.program)], node_of(launch)).bytes;
  }

  // Bytes per ns of the largest node that both have.
  void find_bandwidth() {
    double most = 0;
    for (const Launch& launch : plan_.launches) {
      const auto known = nodes_.find(without_numbers(node_of(launch).name));
      if (known == nodes_.end() || known->second <= 0) continue;
      const double bytes = bytes_of(launch);
      if (bytes <= most) continue;
      most = bytes;
      bandwidth_ = bytes / known->second;
    }
  }

  // ns of the nodes of a task, one after the other; of a profile that times no nodes, each takes the same.
  double by_nodes(const Task& task) const {
    double ns = 0;
    if (nodes_.empty()) return step_launches_ > 0 ? step_ns_ * task.launches / double(step_launches_) : 0;
    for (int32_t l = task.first_launch; l < task.first_launch + task.launches; ++l) {
      const Launch& launch = plan_.launches[size_t(l)];
      const auto known = nodes_.find(without_numbers(node_of(launch).name));
      if (known != nodes_.end()) {
        ns += known->second;
      } else if (bandwidth_ > 0) {
        ns += bytes_of(launch) / bandwidth_;
      }
    }
    return ns;
  }

  double collective(const Task& task) const {
    const Lane& lane = plan_.lanes[size_t(task.lane)];
    const auto devices = int64_t(lane.spans.empty() ? plan_.devices.size() : lane.spans.size());
    return all_reduce_seconds(double(task.reduced_bytes), {1, devices}, links_) * 1e9;
  }

  // How many times as long a learner's task takes next to the others on its device.
  double slowdown(TaskId like) const {
    const int64_t had = std::max<int64_t>(1, profile_.run.learners);
    const bool cpu = plan_.devices.front().kind == PlanDevice::Kind::Cpu;
    if (cpu || learners_ == had) return 1;
    if (had == 1) return double(learners_);
    return measured_.contention.front().scale(like, double(learners_ - 1) / double(had - 1));
  }

  // The task of the profile that stands for one of the plan: of the same name, or of the same kind. kNone: there is
  // none.
  TaskId like(const Task& task) const {
    const auto named = by_name_.find(without_numbers(task.name));
    if (named != by_name_.end()) return named->second;
    const std::vector<Task>& tasks = profile_.plan.tasks;
    const auto found =
        std::find_if(tasks.begin(), tasks.end(), [&](const Task& other) { return other.kind == task.kind; });
    return found == tasks.end() ? kNone : TaskId(found - tasks.begin());
  }

  TaskCosts costs_of(TaskId id) const {
    const Task& task = plan_.tasks[size_t(id)];
    const TaskId known = like(task);
    TaskCosts costs = known == kNone ? TaskCosts() : measured_.tasks[size_t(known)];
    const bool named = by_name_.contains(without_numbers(task.name));
    const auto takes = [&](double ns) { costs.duration = std::vector<int64_t>{std::llround(ns)}; };
    switch (task.kind) {
      case Task::Kind::Compute:
        if (!named || profile_.plan.tasks[size_t(known)].launches != task.launches) takes(by_nodes(task));
        if (known != kNone) costs.duration.scale(slowdown(known));
        break;
      case Task::Kind::Average:
        if (!named) takes(by_nodes(task));
        if (named) costs.duration.scale(double(learners_ + 1) / double(profile_.run.learners + 1));
        break;
      case Task::Kind::Collective: takes(collective(task)); break;
      case Task::Kind::Fill: costs.duration.scale(double(profile_parts_) / double(parts_)); break;
      default: break;
    }
    if (task.learner > 0) costs.duration.begin_later(7 * task.learner);  // learners do not vary all at once
    return costs;
  }

  const Plan& plan_;
  const TraceFile& profile_;
  const WorldLinks links_;
  const int64_t learners_;
  Costs measured_;
  std::vector<double> means_;
  std::map<std::string, TaskId> by_name_;
  std::map<std::string, double> nodes_;  // ns of the step's nodes
  double bandwidth_ = 0;                 // bytes/ns; 0: unknown
  double step_ns_ = 0;                   // of the first learner's step, which has so many launches
  int64_t step_launches_ = 0;
  int32_t parts_ = 1, profile_parts_ = 1;
};

}  // namespace

Costs costs_of_plan(const Plan& plan, int64_t learners, const TraceFile& profile, const WorldLinks& links) {
  return PlanCosts(plan, learners, profile, links).run();
}

double forward_share(const TraceFile& profile) {
  double forward = 0, all = 0;
  for (const LayerTime& layer : layer_times(profile)) {
    forward += double(layer.forward_ns);
    all += double(layer.total_ns());
  }
  return all > 0 ? forward / all : 1.0 / 3;
}

}  // namespace arbalest
