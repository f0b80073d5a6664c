// SPDX-License-Identifier: Apache-2.0
#include "tools/command/plan_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/memory/host_memory.h"
#include "executor/devices/device_memory.h"
#include "executor/plan/make_plan.h"
#include "executor/trace/trace_summary.h"

namespace arbalest {
namespace {

std::string counted(size_t count, const char* one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

// "learner */activations" of "cuda:0/learner 3/activations".
std::string kind_of(const Arena& arena) {
  const std::string name = alike(printable(arena.name));
  return arena.device == kNone ? name : name.substr(std::min(name.find('/') + 1, name.size()));
}

class Summary {
 public:
  Summary(const Plan& plan, const Recomputation& again) : plan_(plan), again_(again) {}

  std::string text() {
    heading();
    clocks();
    tasks();
    memory();
    return std::move(text_);
  }

 private:
  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += fmt::format(format, std::forward<Arguments>(arguments)...) + '\n';
  }

  void heading() {
    std::vector<std::string> devices;
    for (const PlanDevice& device : plan_.devices) devices.push_back(to_string(device));
    if (devices.size() > kListed) {
      devices = {fmt::format("{} devices, {} to {}", devices.size(), devices.front(), devices.back())};
    }
    const size_t learners = plan_.handles.loops.empty() ? 0 : plan_.handles.loops.front().replicas.size();
    line("{}: {} on {}; {} on {}, {}", printable(plan_.graphs.empty() ? "" : plan_.graphs[0].name),
         counted(learners, "learner"), fmt::join(devices, ", "), counted(plan_.tasks.size(), "task"),
         counted(plan_.lanes.size(), "lane"), counted(plan_.edges.size(), "edge"));
  }

  // Lists the clocks: how often each ticks, and its ratio to a finer clock.
  void clocks() {
    line("Clocks");
    for (const ClockId clock : plan_.clocks.ids()) {
      std::string how;
      for (const ClockRelation& relation : plan_.relations) {
        if (relation.coarse != clock || !how.empty()) continue;
        how = fmt::format(", one for every {} of '{}'", relation.group, printable(plan_.clocks[relation.fine].name));
      }
      const Clock& known = plan_.clocks[clock];
      line("  {:<24} {} tick{}{}", printable(known.name), known.ticks, known.ticks == 1 ? "" : "s", how);
    }
  }

  // The nodes of a task by stage: "forward 12, backward 20".
  std::string nodes_of(const Task& task) const {
    constexpr std::array<const char*, 3> kStages = {"forward", "backward", "update"};
    std::array<int, 3> counts{};
    for (int32_t i = 0; i < task.launches; ++i) {
      const Launch& launch = plan_.launches[size_t(task.first_launch + i)];
      ++counts[size_t(plan_.graphs[size_t(launch.program)].nodes[launch.node].stage)];
    }
    std::vector<std::string> parts;
    for (size_t stage = 0; stage < counts.size(); ++stage) {
      if (counts[stage] > 0) parts.push_back(fmt::format("{} {}", counts[stage], kStages[stage]));
    }
    return fmt::format("{} ({})", counted(size_t(task.launches), "node"), fmt::join(parts, ", "));
  }

  // Slots that a task fills with batches, by the edges that say that one is free again.
  std::string slots_of(TaskId task) const {
    int64_t slots = 0;
    const Task::Kind kind = plan_.tasks[task].kind;
    if (kind != Task::Kind::Fill && kind != Task::Kind::CopyIn) return "";
    for (const Edge& edge : plan_.edges) {
      if (edge.to == task && edge.why == Edge::Why::Reuse && edge.distance > 0) {
        slots = slots == 0 ? edge.distance : std::min(slots, edge.distance);
      }
    }
    return slots == 0 ? "" : fmt::format(", {}", counted(size_t(slots), "slot"));
  }

  // "*/cpu:*/learner */step" of "host0/cpu:1/learner 3/step"
  std::string task_kind(TaskId id) const {
    const Task& task = plan_.tasks[id];
    std::string kind = printable(kind_of(task));
    if (task.device == kNone) return kind;
    const std::string host = printable(plan_.devices[size_t(task.device)].host) + "/";
    return host.size() > 1 && kind.starts_with(host) ? "*/" + kind.substr(host.size()) : kind;
  }

  // Tasks that differ in host, device and learner alone are one line.
  void tasks() {
    std::vector<std::string> order;
    std::map<std::string, std::vector<TaskId>> kinds;
    for (const TaskId task : plan_.tasks.ids()) {
      const std::string kind = task_kind(task);
      if (!kinds.contains(kind)) order.push_back(kind);
      kinds[kind].push_back(task);
    }
    size_t width = 0;
    for (const std::string& kind : order) width = std::max(width, kind.size());
    line("Tasks");
    for (const std::string& kind : order) {
      const std::vector<TaskId>& all = kinds[kind];
      const Task& task = plan_.tasks[all[0]];
      std::string what = fmt::format("each {}", printable(plan_.clocks[task.clock].name));
      if (all.size() > 1) what += fmt::format(", {} of them", all.size());
      if (task.launches > 0) what += ", " + nodes_of(task);
      if (task.width > 1) what += fmt::format(", up to {} at once", task.width);
      what += slots_of(all[0]);
      line("  {:<{}}  {}", kind, width, what);
    }
  }

  // "2.1 GiB: activations 1.5 GiB, weights 0.3 GiB and 2 more"
  std::string memory_of(int32_t device) const {
    constexpr size_t kMost = 4;
    std::map<std::string, int64_t> kinds;
    for (const Arena& arena : plan_.arenas) {
      if (arena.device == device && arena.bytes > 0) kinds[kind_of(arena)] += arena.bytes;
    }
    std::vector<std::pair<std::string, int64_t>> parts(kinds.begin(), kinds.end());
    std::stable_sort(parts.begin(), parts.end(), [](auto& a, auto& b) { return a.second > b.second; });
    std::vector<std::string> told;
    for (size_t i = 0; i < std::min(parts.size(), kMost); ++i) {
      told.push_back(fmt::format("{} {}", parts[i].first, bytes_text(parts[i].second)));
    }
    return fmt::format("{}: {}{}", bytes_text(planned_bytes(plan_, device)), fmt::join(told, ", "),
                       parts.size() > kMost ? fmt::format(" and {} more", parts.size() - kMost) : "");
  }

  // Devices of a world that follow each other and have the same are one line.
  void memory() {
    line("Memory");
    const size_t count = plan_.devices.size();
    std::vector<std::string> of_each;
    for (size_t device = 0; device < count; ++device) of_each.push_back(memory_of(int32_t(device)));
    for (size_t first = 0, after = 0; first < count; first = after) {
      const bool folds = count > kListed;
      after = first + 1;
      while (folds && after < count && of_each[after] == of_each[first]) ++after;
      std::string devices = to_string(plan_.devices[first]);
      if (after > first + 1) devices += fmt::format(" to {}, each", to_string(plan_.devices[after - 1]));
      line("  {:<8} {}", devices, of_each[first]);
    }
    if (again_.limit > 0) line("  limit    {}: {}", size_text(again_.limit), to_string(again_));
  }

  static constexpr size_t kListed = 8;  // devices, by name
  const Plan& plan_;
  const Recomputation& again_;
  std::string text_;
};

}  // namespace

std::string summarize_plan(const Plan& plan, const Recomputation& again) {
  return Summary(plan, again).text();
}

std::vector<std::string> memory_notes(const Plan& plan, const Prepared& prepared, int64_t gpu_memory) {
  std::vector<std::string> notes;
  const auto compare = [&](const std::string& where, int64_t bytes, int64_t memory) {
    if (memory < 0 || bytes <= memory) return;
    notes.push_back(
        fmt::format("the plan takes {} of {}, which has {}; a smaller batch, fewer learners or "
                    "--memory-limit takes less",
                    size_text(bytes), where, size_text(memory)));
  };
  int64_t of_host = bytes_of_caches(prepared);
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const int64_t bytes = planned_bytes(plan, int32_t(d));
    if (plan.devices[d].kind == PlanDevice::Kind::Cpu)
      of_host += bytes;
    else
      compare(to_string(plan.devices[d]), bytes,
              gpu_memory > 0 ? gpu_memory : cuda_device_memory(plan.devices[d].index));
  }
  compare("the machine's memory", of_host, host_memory());
  return notes;
}

nlohmann::ordered_json recomputation_record(const Recomputation& again) {
  return {{"bytes", again.limit},
          {"values_computed_again", again.values},
          {"bytes_computed_again", again.bytes},
          {"more_work", again.work}};
}

}  // namespace arbalest
