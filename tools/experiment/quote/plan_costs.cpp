// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/quote/plan_costs.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "graph/op.h"
#include "tools/experiment/answer/statistics.h"

namespace arbalest {
namespace {

// The share of the profile's iterations that is left out at each end: the profile has its warm-up in it.
constexpr double kWarmUp = 0.25;

// The share of a GPU's progress that NCCL takes while it runs there. Measured on two GPUs with seven models at batches
// of 32 and 128: parts of backward passes took 0.3 to 0.5 of the time longer that an all-reduce ran next to them.
constexpr double kCollectiveShare = 0.35;

// The name of a task or node without the numbers of its device, learner and part, and without its host:
// "host1/cuda:3/learner 12/step" and "cuda:0/learner 0/step" are the same.
std::string without_numbers(const std::string& name) {
  std::string text;
  constexpr std::string_view kHost = "host#/";
  for (size_t at = 0; at < name.size(); ++at) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[at])) != 0;
    const bool numbered = text.ends_with("learner ") || text.ends_with("cpu:") || text.ends_with("cuda:") ||
                          text.ends_with("fill ") || text.ends_with("host") || text.ends_with("#");
    if (digit && numbered) {
      if (!text.ends_with("#")) text += '#';
    } else {
      text += name[at];
      if (text.ends_with(kHost)) text.resize(text.size() - kHost.size());
    }
  }
  return text;
}

const Node& node_of(const Plan& plan, const Launch& launch) {
  return plan.graphs[size_t(launch.program)].nodes[launch.node];
}
double bytes_of(const Plan& plan, const Launch& launch) {
  return cost_of(plan.graphs[size_t(launch.program)], node_of(plan, launch)).bytes;
}

// Time and bytes of nodes.
struct NodeWork {
  double ns = 0, bytes = 0;
  NodeWork& operator+=(const NodeWork& more) {
    ns += more.ns;
    bytes += more.bytes;
    return *this;
  }
  double ns_of(double of_bytes) const { return bytes > 0 ? ns * of_bytes / bytes : 0; }
};

// Takes the time from one launch to the next out of times of nodes that were timed one after the other. It is the same
// for all nodes. With it they take longer than the step, in which launches follow each other at once.
void leave_out_launching(std::vector<double>& times, double step) {
  double gap = 0;
  for (int round = 0; round < 20; ++round) {  // more nodes are shorter than the gap in each, and soon no more
    double sum = 0;
    int64_t count = 0;
    for (const double time : times) {
      if (time <= gap) continue;
      sum += time;
      ++count;
    }
    const double next = count > 0 ? (sum - step) / double(count) : 0;
    if (next <= gap) break;
    gap = next;
  }
  double sum = 0;
  for (double& time : times) {
    time = std::max(0.0, time - gap);
    sum += time;
  }
  for (double& time : times) time *= sum > 0 ? step / sum : 0;
}

class PlanCosts {
 public:
  PlanCosts(const Plan& plan, int64_t learners, const Profile& profile, const WorldLinks& links)
      : plan_(plan), profile_(profile), trace_(profile.trace), links_(links), ranks_(ranks()), learners_(learners) {
    const SteadyState steady = find_steady_state(trace_.plan, trace_.tasks, kWarmUp);
    if (steady.iteration_ns <= 0) throw GraphError("the profile has too few iterations");
    measured_ = measure_costs(trace_, steady);
    find_means(steady);
    find_nodes();
    parts_ = parts_of(plan_) / parts_of(profile_.plan);
  }

  Costs run() {
    Costs costs;
    for (const TaskId task : plan_.tasks.ids()) costs.tasks.push_back(costs_of(task));
    for (const Lane& lane : plan_.lanes) {
      const auto& lanes = trace_.plan.lanes;
      const auto like =
          std::find_if(lanes.begin(), lanes.end(), [&](const Lane& other) { return other.kind == lane.kind; });
      costs.lanes.push_back(like == lanes.end() ? LaneCosts() : measured_.lanes[lanes.id_of(like)]);
    }
    costs.contention.resize(plan_.devices.size());
    costs.threads = measured_.threads;
    if (on_gpus()) costs.collective_share = kCollectiveShare;
    return costs;
  }

 private:
  bool on_gpus() const { return plan_.devices.front().kind == PlanDevice::Kind::Cuda; }

  static double parts_of(const Plan& plan) {
    int32_t parts = 1;
    for (const Task& task : plan.tasks) parts = std::max(parts, task.parts);
    return parts;
  }

  // Mean durations of the profile's tasks, in ns, and its tasks by name.
  void find_means(const SteadyState& steady) {
    Table<TaskId, double> sums(trace_.plan.tasks.size(), 0);
    Table<TaskId, int64_t> counts(sums.size(), 0);
    for (const TaskSpan& span : trace_.tasks) {
      if (!steady.holds(trace_.plan, span)) continue;
      sums[span.task] += double(span.ended - span.started);
      ++counts[span.task];
    }
    for (const TaskId task : sums.ids()) {
      means_.push_back(counts[task] > 0 ? sums[task] / double(counts[task]) : 0);
      by_name_.try_emplace(without_numbers(trace_.plan.tasks[task].name), task);
    }
    for (const Task& task : profile_.plan.tasks) launches_.try_emplace(without_numbers(task.name), task.launches);
  }

  bool is_first_step(TaskId task) const {
    const Task& known = trace_.plan.tasks[task];
    return known.kind == Task::Kind::Compute && known.learner == 0;
  }

  // The nodes of the first learner's step, with names and times, which add up to it.
  void find_nodes() {
    double step = 0;
    std::vector<std::string> names;
    std::vector<double> times;
    for (const TaskId task : means_.ids()) {
      if (!is_first_step(task)) continue;
      const double mean = means_[task];
      step += mean;
      for (const NodeShare& node : measured_.tasks[task].nodes) {
        names.push_back(without_numbers(measured_.launches[size_t(node.launch)]));
        times.push_back(mean * node.share);
      }
    }
    if (!trace_.timed.empty()) {
      names.clear();
      times.clear();
      for (const NodeTime& node : trace_.timed) {
        if (!is_first_step(node.task)) continue;
        names.push_back(without_numbers(trace_.launches[size_t(node.launch)]));
        times.push_back(double(node.ns));
      }
    }
    leave_out_launching(times, step);
    std::map<std::string, double> took;
    for (size_t i = 0; i < names.size(); ++i) took[names[i]] += times[i];
    for (const Launch& launch : profile_.plan.launches) {
      const Node& node = node_of(profile_.plan, launch);
      const auto found = took.find(without_numbers(node.name));
      if (found == took.end()) continue;
      const NodeWork work = {found->second, bytes_of(profile_.plan, launch)};
      nodes_[found->first] = work;
      operators_[node.op->qualified_name()] += work;
      if (work.bytes > largest_.bytes) largest_ = work;
      took.erase(found);
    }
  }

  // ns of the nodes of a task, one after the other.
  double by_nodes(const Task& task) const {
    double ns = 0;
    for (int32_t l = task.first_launch; l < task.first_launch + task.launches; ++l) {
      const Launch& launch = plan_.launches[size_t(l)];
      const Node& node = node_of(plan_, launch);
      const double bytes = bytes_of(plan_, launch);
      const auto same = nodes_.find(without_numbers(node.name));
      const auto alike = operators_.find(node.op->qualified_name());
      if (same != nodes_.end() && same->second.bytes == bytes) {
        ns += same->second.ns;
      } else {
        ns += (alike != operators_.end() ? alike->second : largest_).ns_of(bytes);
      }
    }
    return ns;
  }

  // The rank of each device of all hosts.
  std::vector<int> ranks() const {
    std::vector<int> ranks = plan_.ranks_of_devices;
    if (ranks.empty()) {
      for (const PlanDevice& device : plan_.devices) ranks.push_back(device.rank);
    }
    return ranks;
  }

  int64_t learners_of_host() const { return std::count(ranks_.begin(), ranks_.end(), ranks_.front()) * learners_; }

  double collective(const Task& task) const {
    const Lane& lane = plan_.lanes[task.lane];
    std::set<int> hosts;
    for (size_t device = 0; device < ranks_.size(); ++device) {
      const bool spanned = std::find(lane.spans.begin(), lane.spans.end(), int32_t(device)) != lane.spans.end();
      if (spanned || lane.spans.empty()) hosts.insert(ranks_[device]);
    }
    const auto devices = int64_t(lane.spans.empty() ? ranks_.size() : lane.spans.size());
    const WorldSize size = {int64_t(hosts.size()), devices / int64_t(hosts.size())};
    return all_reduce_seconds(double(task.reduced_bytes), size, links_) * 1e9;
  }

  // How many times as long a learner's task takes next to the others on its device.
  double slowdown(TaskId like) const {
    const int64_t had = std::max<int64_t>(1, trace_.run.learners);
    if (!on_gpus() || learners_ == had) return 1;
    if (had == 1) return double(learners_);
    return measured_.contention.front().scale(like, double(learners_ - 1) / double(had - 1));
  }

  // The task of the profile that stands for one of the plan: of the same name, or of the same kind. kNone: there is
  // none.
  TaskId like(const Task& task) const {
    const auto named = by_name_.find(without_numbers(task.name));
    if (named != by_name_.end()) return named->second;
    const Table<TaskId, Task>& tasks = trace_.plan.tasks;
    const auto found =
        std::find_if(tasks.begin(), tasks.end(), [&](const Task& other) { return other.kind == task.kind; });
    return found == tasks.end() ? kNone : tasks.id_of(found);
  }

  TaskCosts costs_of(TaskId id) const {
    const Task& task = plan_.tasks[id];
    const TaskId known = like(task);
    TaskCosts costs = known == kNone ? TaskCosts() : measured_.tasks[known];
    const auto launches = launches_.find(without_numbers(task.name));
    const bool same = launches != launches_.end() && launches->second == task.launches;
    const auto takes = [&](double ns) { costs.duration = std::vector<int64_t>{std::llround(ns)}; };
    switch (task.kind) {
      case Task::Kind::Compute:
        if (!same) takes(by_nodes(task));
        if (known != kNone) costs.duration.scale(slowdown(known));
        break;
      case Task::Kind::Average:
        if (!same) takes(by_nodes(task));
        if (same) costs.duration.scale(double(learners_ + 1) / double(trace_.run.learners + 1));
        break;
      case Task::Kind::Collective: takes(collective(task)); break;
      case Task::Kind::Fill: costs.duration.scale(1 / parts_); break;
      default: break;
    }
    // Learners of a host do not vary all at once.
    if (task.learner > 0) costs.duration.begin_later(7 * (task.learner % learners_of_host()));
    return costs;
  }

  const Plan& plan_;
  const Profile& profile_;
  const TraceFile& trace_;
  const WorldLinks links_;
  const std::vector<int> ranks_;
  const int64_t learners_;
  Costs measured_;
  Table<TaskId, double> means_;
  std::map<std::string, TaskId> by_name_;    // tasks of the trace
  std::map<std::string, int32_t> launches_;  // of the profile's tasks
  std::map<std::string, NodeWork> nodes_;    // of the profile's step, and by operator
  std::map<std::string, NodeWork> operators_;
  NodeWork largest_;
  double parts_ = 1;  // of a fill, for each that a fill of the profile has
};

}  // namespace

Costs costs_of_plan(const Plan& plan, int64_t learners, const Profile& profile, const WorldLinks& links) {
  return PlanCosts(plan, learners, profile, links).run();
}

std::optional<double> core_seconds_of_image(const Profile& profile) {
  const TraceFile& trace = profile.trace;
  const auto cores = std::find_if(trace.sampling.series.begin(), trace.sampling.series.end(),
                                  [](const SampleSeries& series) { return series.unit == "cores"; });
  const SteadyState steady = find_steady_state(trace.plan, trace.tasks, kWarmUp);
  const auto images = double(trace.run.batch * trace.run.learners);
  if (cores == trace.sampling.series.end() || cores->values.empty() || steady.iteration_ns <= 0 || images <= 0) {
    return std::nullopt;
  }
  return median_of(cores->values) * steady.iteration_ns / 1e9 / images;
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
