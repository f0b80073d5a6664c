// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/number.h"
#include "base/setting.h"

namespace arbalest {
namespace {

constexpr double kMostFactor = 1e6;
constexpr int64_t kLargestChange = 1024;  // of prefetch.depth and learners

// The change as messages name it: "--what-if 'source*2'".
std::string asked(std::string_view text) {
  return set_to(SettingKey::WhatIf, fmt::format("'{}'", text));
}

[[noreturn]] void refuse(std::string_view text, const std::string& found, const std::string& hint = "") {
  throw GraphError(
      fmt::format("{}: {}; expected prefetch.depth=N, source*F, learners-N or PATTERN*F{}", asked(text), found, hint));
}

int64_t count_of(std::string_view text, std::string_view count) {
  const std::optional<int64_t> number = read_number<int64_t>(count);
  if (!number || *number < 1 || *number > kLargestChange) {
    refuse(text, fmt::format("found '{}' for N, expected a whole number from 1 to {}", count, kLargestChange));
  }
  return *number;
}

double factor_of(std::string_view text, std::string_view factor) {
  const std::optional<double> number = read_number<double>(factor);
  if (!number || !(*number > 0) || *number > kMostFactor) {
    refuse(text, fmt::format("found '{}' for F, expected a number above 0 and at most {:g}", factor, kMostFactor));
  }
  return *number;
}

// Whether the pattern's pieces, between its stars, occur in the name one after the other.
bool contains(std::string_view name, std::string_view pattern) {
  size_t at = 0;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('*', begin), pattern.size());
    const std::string_view piece = pattern.substr(begin, end - begin);
    at = name.find(piece, at);
    if (at == name.npos) return false;
    at += piece.size();
    begin = end + 1;
  }
  return true;
}

// Layers, and parts of tasks' names between slashes: what a pattern is likely to be.
std::string nearest_pattern(const Scenario& scenario, const std::string& pattern) {
  std::set<std::string> parts;
  for (const std::string& node : scenario.costs.launches) parts.insert(layer_of(node).layer);
  for (const Task& task : scenario.plan.tasks) {
    for (size_t at = 0; at <= task.name.size();) {
      const size_t slash = std::min(task.name.find('/', at), task.name.size());
      parts.insert(task.name.substr(at, slash - at));
      at = slash + 1;
    }
  }
  return did_you_mean(pattern, std::vector<std::string>(parts.begin(), parts.end()));
}

// By launch, whether its node is meant.
template <typename Meant>
std::vector<char> nodes_of(const Costs& costs, Meant meant) {
  std::vector<char> chosen;
  for (const std::string& node : costs.launches) chosen.push_back(meant(node) ? 1 : 0);
  return chosen;
}

void scale_tasks(const WhatIf& change, Scenario& scenario) {
  Costs& costs = scenario.costs;
  const auto in_layer = [&](const std::string& node) { return layer_of(node).layer == change.pattern; };
  const auto in_name = [&](const std::string& node) { return contains(node, change.pattern); };
  const bool tasks_only = change.kind == WhatIf::Kind::Source;
  if (!tasks_only && scale_nodes(costs, nodes_of(costs, in_layer), change.factor)) return;
  bool found = false;
  for (const TaskId task : scenario.plan.tasks.ids()) {
    const Task& known = scenario.plan.tasks[task];
    const bool meant =
        change.kind == WhatIf::Kind::Source ? known.kind == Task::Kind::Fill : contains(known.name, change.pattern);
    if (meant) scenario.costs.tasks[task].duration.scale(change.factor);
    found = found || meant;
  }
  if (found) return;
  if (tasks_only) throw GraphError(asked(change.text) + ": no task of the plan fills batches");
  if (scale_nodes(costs, nodes_of(costs, in_name), change.factor)) return;
  throw GraphError(fmt::format("{}: no layer is called '{}', and no name of a task or node contains it{}",
                               asked(change.text), change.pattern, nearest_pattern(scenario, change.pattern)));
}

void set_depths(const WhatIf& change, Scenario& scenario) {
  bool found = false;
  for (Edge& edge : scenario.plan.edges) {
    if (edge.why != Edge::Why::Reuse || scenario.plan.tasks[edge.to].kind != Task::Kind::Fill) continue;
    set_depth(scenario.plan, edge, change.count);
    found = true;
  }
  if (!found) {
    throw GraphError(asked(change.text) + ": no task of the plan fills slots that are freed");
  }
}

// Learners of a device, in order.
std::vector<int32_t> learners_on(const Plan& plan, int32_t device) {
  std::set<int32_t> learners;
  for (const Lane& lane : plan.lanes) {
    if (lane.kind == Lane::Kind::Compute && lane.device == device) learners.insert(lane.learner);
  }
  return {learners.begin(), learners.end()};
}

// Takes out what belongs to a learner; ids move up.
void remove_learners(Scenario& scenario, const std::set<int32_t>& gone) {
  Plan& plan = scenario.plan;
  const auto removed = [&](const auto& owned) { return owned.learner != kNone && gone.contains(owned.learner); };
  Table<LaneId, LaneId> lane_now(plan.lanes.size(), kNone);
  Table<TaskId, TaskId> task_now(plan.tasks.size(), kNone);
  Plan left = plan;
  left.lanes.clear();
  left.tasks.clear();
  left.edges.clear();
  Costs costs = scenario.costs;
  costs.lanes.clear();
  costs.tasks.clear();
  for (const LaneId lane : plan.lanes.ids()) {
    if (removed(plan.lanes[lane])) continue;
    lane_now[lane] = LaneId(left.lanes.size());
    left.lanes.push_back(plan.lanes[lane]);
    costs.lanes.push_back(scenario.costs.lanes[lane]);
  }
  for (const TaskId task : plan.tasks.ids()) {
    if (removed(plan.tasks[task])) continue;
    task_now[task] = TaskId(left.tasks.size());
    left.tasks.push_back(plan.tasks[task]);
    left.tasks.back().lane = lane_now[plan.tasks[task].lane];
    costs.tasks.push_back(scenario.costs.tasks[task]);
  }
  for (Edge edge : plan.edges) {
    edge.from = task_now[edge.from];
    edge.to = task_now[edge.to];
    if (edge.from != kNone && edge.to != kNone) left.edges.push_back(std::move(edge));
  }
  for (Contention& contention : costs.contention) {
    std::map<TaskId, double> alone;
    for (const auto& [task, part] : contention.alone) {
      if (task_now[task] != kNone) alone[task_now[task]] = part;
    }
    contention.alone = std::move(alone);
  }
  scenario = {std::move(left), std::move(costs)};
}

// The last learners of each device go: validation looks at the first.
void drop_learners(const WhatIf& change, Scenario& scenario) {
  std::set<int32_t> gone;
  for (int32_t device = 0; device < int32_t(scenario.plan.devices.size()); ++device) {
    const std::vector<int32_t> learners = learners_on(scenario.plan, device);
    const auto had = int64_t(learners.size()), left = had - change.count;
    if (left < 1) {
      throw GraphError(fmt::format("{}: {} has {} learner{}, and one has to stay", asked(change.text),
                                   to_string(scenario.plan.devices[size_t(device)]), had, had == 1 ? "" : "s"));
    }
    gone.insert(learners.begin() + left, learners.end());
    Contention& contention = scenario.costs.contention[size_t(device)];
    const double share = double(left - 1) / double(had - 1);  // of the others
    for (auto& [task, alone] : contention.alone) {
      const double factor = contention.scale(task, share);
      scenario.costs.tasks[task].duration.scale(factor);
      alone /= factor;
    }
  }
  remove_learners(scenario, gone);
}

}  // namespace

void set_world(Scenario& scenario, const WorldSize& size, const WorldLinks& links) {
  bool known = false;
  for (const TaskId id : scenario.plan.tasks.ids()) {
    const Task& task = scenario.plan.tasks[id];
    if (task.kind != Task::Kind::Collective) continue;
    known = known || task.reduced_bytes > 0;
    const bool within = !scenario.plan.lanes[task.lane].spans.empty();
    const WorldSize spanned = within ? WorldSize{1, size.devices} : size;
    const double seconds = all_reduce_seconds(double(task.reduced_bytes), spanned, links);
    scenario.costs.tasks[id].duration = std::vector<int64_t>{std::llround(seconds * 1e9)};
  }
  if (!known) {
    throw GraphError(name_of(SettingKey::World) +
                     ": the trace has no collective whose bytes are known; expected one of a run on several devices, "
                     "written by this version");
  }
}

int64_t depth_of(const Plan& plan, const Edge& edge) {
  return plan.tasks[edge.from].kind == Task::Kind::CopyIn ? edge.distance : 0;
}

void set_depth(Plan& plan, Edge& edge, int64_t depth) {
  Task& fill = plan.tasks[edge.to];
  fill.width = int32_t(std::min<int64_t>(depth, kWidest));
  for (Edge& other : plan.edges) {
    if (other.from != edge.to) continue;
    if (other.to == edge.to && other.why == Edge::Why::Self) other.distance = fill.width;
    if (other.why == Edge::Why::Data && plan.tasks[other.to].kind == Task::Kind::CopyIn) edge.from = other.to;
  }
  edge.distance = depth;
}

bool scale_nodes(Costs& costs, const std::vector<char>& meant, double factor) {
  bool found = false;
  for (TaskCosts& task : costs.tasks) {
    double share = 0;
    for (const NodeShare& node : task.nodes) {
      if (!meant[size_t(node.launch)]) continue;
      share += node.share;
      found = true;
    }
    if (share > 0) task.duration.scale(1 + share * (factor - 1));
  }
  return found;
}

WhatIf parse_what_if(std::string_view text) {
  constexpr std::string_view kLearners = "learners-";
  WhatIf change;
  change.text = text;
  if (const size_t star = text.rfind('*'); star != text.npos) {
    change.pattern = text.substr(0, star);
    change.factor = factor_of(text, text.substr(star + 1));
    if (change.pattern.empty()) refuse(text, "found no task before '*'");
    if (change.pattern == "source") change.kind = WhatIf::Kind::Source;
    return change;
  }
  const size_t equals = text.find('=');
  if (text.substr(0, equals) == "prefetch.depth" && equals != text.npos) {
    change.kind = WhatIf::Kind::Depth;
    change.count = count_of(text, text.substr(equals + 1));
    return change;
  }
  if (text.starts_with(kLearners)) {
    change.kind = WhatIf::Kind::Learners;
    change.count = count_of(text, text.substr(kLearners.size()));
    return change;
  }
  const std::vector<std::string> known = {"prefetch.depth", "source", "learners"};
  const std::string name(text.substr(0, text.find_first_of("=-+/")));
  const std::string_view rest = text.substr(name.size());
  const bool right = std::find(known.begin(), known.end(), name) != known.end();
  if (right && !rest.empty()) refuse(text, fmt::format("found '{}' after '{}'", rest, name));
  refuse(text, fmt::format("found '{}'", name), right ? "" : did_you_mean(name, known));
}

void apply(const WhatIf& change, Scenario& scenario) {
  switch (change.kind) {
    case WhatIf::Kind::Depth: set_depths(change, scenario); break;
    case WhatIf::Kind::Learners: drop_learners(change, scenario); break;
    case WhatIf::Kind::Source:
    case WhatIf::Kind::Tasks: scale_tasks(change, scenario); break;
  }
  verify(scenario.plan);
}

}  // namespace arbalest
