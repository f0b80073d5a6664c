// SPDX-License-Identifier: Apache-2.0

// The terminal report of trace_summary.h.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "executor/plan/make_plan.h"
#include "executor/trace/amounts.h"
#include "executor/trace/layer_times.h"
#include "executor/trace/trace_summary.h"
#include "executor/trace/verdict.h"

namespace arbalest {
namespace {

constexpr size_t kBriefTasks = 8, kBriefLayers = 8;
constexpr size_t kManyProcesses = 5;  // so many are reported together

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? double(part) / double(whole) : 0;
}

// The names of a plan's processes; none if there are few, each of which is reported by itself.
std::vector<std::string> many_processes(const Plan& plan) {
  std::set<std::string> names;
  for (const PlanDevice& device : plan.devices) names.insert(device.host);
  if (names.size() < kManyProcesses) return {};
  return {names.begin(), names.end()};
}

// Lanes or tasks that the report shows in one line.
template <typename Item>
struct Group {
  std::string name;  // of several: what they share, and how many
  std::vector<const Item*> members;

  template <typename Number>
  Number sum(Number Item::*member) const {
    Number total{};
    for (const Item* item : members) total += item->*member;
    return total;
  }
};

class Report {
 public:
  Report(const TraceFile& trace, const SummaryOptions& options)
      : trace_(trace), plan_(trace.plan), options_(options), summary_(analyze(trace, options)) {
    lanes_ = groups_of(summary_.lanes, [this](const LaneSummary& lane) { return lane_name(lane.lane); });
    tasks_ = groups_of(summary_.tasks, [this](const TaskSummary& task) { return task_name(task.task); });
    std::stable_sort(tasks_.begin(), tasks_.end(), [](const Group<TaskSummary>& a, const Group<TaskSummary>& b) {
      return a.sum(&TaskSummary::total_ns) > b.sum(&TaskSummary::total_ns);
    });
    for (const auto& lane : lanes_) name_width_ = std::max(name_width_, lane.name.size());
    for (const auto& task : tasks_) name_width_ = std::max(name_width_, task.name.size());
    for (const LayerTime& layer : layers_) name_width_ = std::max(name_width_, layer.name.size());
  }

  std::string text() {
    verdict();
    heading();
    steady_state();
    lanes();
    tasks();
    layers();
    sampled();
    if (options_.full) {
      slowest();
      gaps();
      overlaps();
    }
    hiding();
    critical();
    return std::move(text_);
  }

 private:
  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }
  // In the order of their first members.
  template <typename Item, typename NameOf>
  std::vector<Group<Item>> groups_of(const std::vector<Item>& items, NameOf name_of) const {
    std::vector<Group<Item>> groups;
    for (const Item& item : items) {
      const std::string name = options_.each ? name_of(item) : like(name_of(item));
      auto group = std::find_if(groups.begin(), groups.end(), [&](const Group<Item>& one) { return one.name == name; });
      if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
      group->members.push_back(&item);
    }
    for (Group<Item>& group : groups) {
      const bool alone = group.members.size() == 1;
      group.name = alone ? name_of(*group.members[0]) : fmt::format("{} ({})", group.name, group.members.size());
    }
    return groups;
  }

  // As alike(), without the names of many processes: "*/cuda:*/learner */step".
  std::string like(const std::string& text) const {
    std::string kind = alike(text);
    for (const std::string& process : processes_) {
      const std::string prefix = process + "/";
      for (size_t at = kind.find(prefix); at != kind.npos; at = kind.find(prefix, at + 1)) {
        if (at == 0 || kind[at - 1] == ' ') kind.replace(at, process.size(), "*");
      }
    }
    return kind;
  }

  const std::string& lane_name(LaneId lane) const { return plan_.lanes[lane].name; }
  const std::string& task_name(TaskId task) const { return plan_.tasks[task].name; }

  bool takes_turns() const {
    std::map<int32_t, int> learners;  // by CPU device
    for (const Lane& lane : plan_.lanes) {
      const bool cpu = lane.device != kNone && plan_.devices[size_t(lane.device)].kind == PlanDevice::Kind::Cpu;
      if (cpu && lane.kind == Lane::Kind::Compute) ++learners[lane.device];
    }
    return std::any_of(learners.begin(), learners.end(), [](const auto& device) { return device.second > 1; });
  }

  void verdict() {
    const Verdict verdict = judge(trace_, summary_);
    line("{}", verdict.sentence);
    for (const std::string& note : verdict.notes) line("{}", note);
    for (const VerdictFigure& figure : verdict.figures) line("  {:>12}  {}", figure.value, figure.text);
    line("");
  }

  void heading() {
    line("{}{} over {}", trace_.graph.empty() ? "" : trace_.graph + ": ",
         counted(int64_t(trace_.tasks.size()), "task instance"), duration(double(summary_.end - summary_.begin)));
    const auto note = [&](int64_t count, const char* of, const char* what) {
      if (count > 0) line("{} {}", counted(count, of), what);
    };
    note(trace_.dropped, "older span", "dropped: the trace holds the newest only");
    note(trace_.unfinished, "instance", "left out, which had no known start or end");
    const ReadingTimes& reading = trace_.reading;
    if (reading.samples == 0) return;
    const auto each = [&](double seconds) { return duration(1e9 * seconds / double(reading.samples)); };
    line("preparing a sample took {} of a thread: reading {}, decoding {}, scaling {}",
         each(reading.read + reading.decode + reading.scale), each(reading.read), each(reading.decode),
         each(reading.scale));
  }

  void steady_state() {
    line("\nSteady state");
    if (summary_.iteration_ns > 0) {
      line("  iterations {} to {}: {} each", summary_.first_steady, summary_.last_steady,
           duration(summary_.iteration_ns));
    } else {
      line("  too few iterations");
    }
    if (summary_.compute_idle >= 0) {
      line("  compute lanes idle between tasks: {}{}", percent(summary_.compute_idle),
           takes_turns() ? ", other learners' turns on a CPU device included" : "");
    }
    if (summary_.issuing_ns < 0) {
      line("  issuing: not recorded");
    } else {
      line("  issuing: {} of host time per iteration; {} in the median iteration, other clocks apart",
           duration(summary_.issuing_ns), duration(summary_.issuing_median_ns));
    }
  }

  using Reasons = std::vector<IdleReason> LaneSummary::*;
  void reasons(const char* label, const Group<LaneSummary>& lanes, Reasons of, int64_t whole) {
    // Causes that differ in device and learner alone are one.
    struct Cause {
      std::string why;
      int64_t ns = 0;
    };
    std::map<std::string, Cause> causes;
    for (const LaneSummary* lane : lanes.members) {
      for (const IdleReason& reason : lane->*of) {
        const std::string key = options_.each ? reason.why : like(reason.why);
        Cause& cause = causes.try_emplace(key, Cause{reason.why, 0}).first->second;
        if (cause.why != reason.why) cause.why = key;
        cause.ns += reason.ns;
      }
    }
    std::vector<Cause> list;
    for (auto& [key, cause] : causes) list.push_back(std::move(cause));
    std::stable_sort(list.begin(), list.end(), [](const Cause& a, const Cause& b) { return a.ns > b.ns; });
    const auto most = size_t(options_.full ? options_.reasons : std::min(options_.reasons, 1));
    for (size_t i = 0; i < std::min(list.size(), most); ++i) {
      line("  {:<{}}  {:>8} {}: {}", "", name_width_, percent(ratio(list[i].ns, whole)), label, list[i].why);
    }
  }

  // Lanes that do the same work are one line: their mean, and how far they are apart.
  void lanes() {
    line("\n{:<{}}  {:>8} {:>8}", "Lanes", name_width_ + 2, "busy", "idle");
    for (const Group<LaneSummary>& lanes : lanes_) {
      const int64_t busy = lanes.sum(&LaneSummary::busy_ns), whole = busy + lanes.sum(&LaneSummary::idle_ns);
      std::vector<double> shares;
      for (const LaneSummary* lane : lanes.members) {
        shares.push_back(ratio(lane->busy_ns, lane->busy_ns + lane->idle_ns));
      }
      const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
      line("  {:<{}}  {:>8} {:>8}{}", lanes.name, name_width_, percent(ratio(busy, whole)),
           percent(1 - ratio(busy, whole)),
           shares.size() == 1 ? "" : fmt::format("  busy from {} to {}", percent(*least), percent(*most)));
      reasons("idle", lanes, &LaneSummary::reasons, whole);
      const bool compute = plan_.lanes[lanes.members[0]->lane].kind == Lane::Kind::Compute;
      if (!compute || lanes.sum(&LaneSummary::steady_idle_ns) == 0) continue;
      reasons("idle in the steady state", lanes, &LaneSummary::steady_reasons, lanes.sum(&LaneSummary::steady_ns));
    }
  }

  void tasks() {
    const size_t most = options_.full ? tasks_.size() : std::min(tasks_.size(), kBriefTasks);
    TimeColumn means("mean"), longests("longest"), totals("total");
    for (size_t i = 0; i < most; ++i) {
      const Group<TaskSummary>& tasks = tasks_[i];
      const int64_t count = tasks.sum(&TaskSummary::count), total = tasks.sum(&TaskSummary::total_ns);
      int64_t longest = 0;
      for (const TaskSummary* task : tasks.members) longest = std::max(longest, task->longest_ns);
      means.add(double(total) / double(std::max<int64_t>(1, count)));
      longests.add(longest);
      totals.add(total);
    }
    line("\n{:<{}}  {:>9} {:>12} {:>12} {:>12}", "Tasks", name_width_ + 2, "instances", means.heading(),
         longests.heading(), totals.heading());
    for (size_t i = 0; i < most; ++i) {
      line("  {:<{}}  {:>9} {:>12} {:>12} {:>12}", tasks_[i].name, name_width_,
           grouped(tasks_[i].sum(&TaskSummary::count)), means.cell(i), longests.cell(i), totals.cell(i));
    }
    if (most < tasks_.size()) line("  and {} more that take less", tasks_.size() - most);
  }

  void layers() {
    if (layers_.empty()) return;
    const size_t most = options_.full ? layers_.size() : std::min(layers_.size(), kBriefLayers);
    TimeColumn forward("forward"), backward("backward"), totals("total");
    for (size_t i = 0; i < most; ++i) {
      forward.add(layers_[i].forward_ns);
      backward.add(layers_[i].backward_ns);
      totals.add(layers_[i].total_ns());
    }
    line("\n{:<{}}  {:>9} {:>12} {:>13} {:>12}{}", "Layers", name_width_ + 2, "share", forward.heading(),
         backward.heading(), totals.heading(), trace_.nodes.empty() ? "  by what each node takes after the run" : "");
    int64_t all = 0;
    for (const LayerTime& layer : layers_) all += layer.total_ns();
    for (size_t i = 0; i < most; ++i) {
      line("  {:<{}}  {:>9} {:>12} {:>13} {:>12}", layers_[i].name, name_width_,
           percent(ratio(layers_[i].total_ns(), all)), forward.cell(i), backward.cell(i), totals.cell(i));
    }
    if (most < layers_.size()) line("  and {} more that take less", layers_.size() - most);
  }

  static std::string amount(double value, const std::string& unit) {
    if (unit == "B") return bytes_text(int64_t(value));
    return fmt::format("{:.{}f} {}", value, unit == "cores" ? 1 : 0, unit);
  }

  void sampled() {
    const Sampling& sampling = trace_.sampling;
    if (sampling.at.empty() && sampling.note.empty()) return;
    line("\n{:<{}}  {:>12} {:>12} {:>12}  every {} ms", "Devices over time", name_width_ + 2, "mean", "highest",
         "limit", sampling.interval_ms);
    for (const SampleSeries& series : sampling.series) {
      if (series.values.empty()) continue;
      const double sum = std::accumulate(series.values.begin(), series.values.end(), 0.0);
      const std::string device = series.device == kNone ? "" : to_string(plan_.devices[size_t(series.device)]) + " ";
      line("  {:<{}}  {:>12} {:>12} {:>12}", device + series.name, name_width_,
           amount(sum / double(series.values.size()), series.unit),
           amount(*std::max_element(series.values.begin(), series.values.end()), series.unit),
           series.most > 0 ? amount(series.most, series.unit) : "");
    }
    if (!sampling.note.empty()) line("  {}", sampling.note);
  }

  void slowest() {
    if (summary_.slowest.empty()) return;
    TimeColumn took("took");
    for (const TaskSpan* span : summary_.slowest) took.add(span->ended - span->started);
    line("\n{:<{}}  {:>11}", "Slowest instances", name_width_ + 2, took.heading());
    for (size_t i = 0; i < summary_.slowest.size(); ++i) {
      const TaskSpan* span = summary_.slowest[i];
      line("  {:<{}}  {:>11}  iteration {} at {}", task_name(span->task), name_width_, took.cell(i), span->instance,
           duration(double(span->started)));
    }
  }

  void gaps() {
    if (summary_.gaps.empty()) return;
    TimeColumn took("took");
    for (const Gap& gap : summary_.gaps) took.add(gap.to - gap.from);
    line("\n{:<{}}  {:>11}", "Largest gaps", name_width_ + 2, took.heading());
    for (size_t i = 0; i < summary_.gaps.size(); ++i) {
      const Gap& gap = summary_.gaps[i];
      line("  {:<{}}  {:>11}  before {} {} at {}: {}", lane_name(gap.lane), name_width_, took.cell(i),
           task_name(gap.next->task), gap.next->instance, duration(double(gap.from)), gap.why);
    }
  }

  // How much compute lanes overlap with each other, and host work with compute lanes.
  void overlaps() {
    std::vector<Overlap> near;
    for (const Overlap& overlap : summary_.overlaps) {
      const Lane& lane = plan_.lanes[overlap.lane];
      const Lane& other = plan_.lanes[overlap.other];
      const bool here = lane.kind == Lane::Kind::Compute && lane.device == other.device;
      if ((here || lane.kind == Lane::Kind::Host) && other.kind == Lane::Kind::Compute) near.push_back(overlap);
    }
    if (near.empty()) return;
    line("\nOverlap");
    const auto other_of = [this](const Overlap& one) { return lane_name(one.other); };
    for (const Group<LaneSummary>& lanes : lanes_) {
      std::vector<Overlap> theirs;
      for (const Overlap& overlap : near) {
        const auto same = [&](const LaneSummary* lane) { return lane->lane == overlap.lane; };
        if (std::any_of(lanes.members.begin(), lanes.members.end(), same)) theirs.push_back(overlap);
      }
      for (const Group<Overlap>& others : groups_of(theirs, other_of)) {
        const auto count = double(others.members.size());
        const std::string name = count == 1 ? other_of(*others.members[0]) : like(other_of(*others.members[0]));
        line("  {:<{}}  {:>8} of its busy time {} is busy too{}", lanes.name, name_width_,
             percent(others.sum(&Overlap::share) / count), name, count == 1 ? "" : ", on average");
      }
    }
  }

  std::string name_of_all(Lane::Kind kind) const {
    switch (kind) {
      case Lane::Kind::CopyIn: return "all copies in";
      case Lane::Kind::CopyOut: return "all copies out";
      case Lane::Kind::Validate: return "all validation";
      case Lane::Kind::Averaging: return "all " + agreeing_in_words(trace_.run);
      default: return "all collectives";
    }
  }

  void hiding() {
    if (summary_.hiding.empty()) return;
    const auto name_of = [this](const Hiding& part) {
      return part.lane == kNone ? name_of_all(part.kind) : lane_name(part.lane);
    };
    const std::vector<Group<Hiding>> groups = groups_of(summary_.hiding, name_of);
    TimeColumn busy("busy"), waits("compute waits");
    for (const Group<Hiding>& parts : groups) {
      busy.add(parts.sum(&Hiding::busy_ns));
      waits.add(parts.sum(&Hiding::waited_ns));
    }
    line("\n{:<{}}  {:>11} {:>8} {:>18}", "Other lanes", name_width_ + 2, busy.heading(), "hidden", waits.heading());
    for (size_t i = 0; i < groups.size(); ++i) {
      const Group<Hiding>& parts = groups[i];
      const Hiding& first = *parts.members[0];
      const auto of_kind = std::count_if(groups.begin(), groups.end(), [&](const Group<Hiding>& other) {
        return other.members[0]->kind == first.kind;
      });
      if (first.lane == kNone && of_kind == 2) continue;  // one group and all of its kind
      line("  {:<{}}  {:>11} {:>8} {:>18}", parts.name, name_width_, busy.cell(i),
           percent(ratio(parts.sum(&Hiding::hidden_ns), parts.sum(&Hiding::busy_ns))), waits.cell(i));
    }
  }

  void critical() {
    const Cycle& cycle = summary_.critical;
    if (cycle.edges.empty()) return;
    line("\nCritical cycle: no schedule takes less than {} per iteration{}", duration(cycle.bound() * 1000),
         takes_turns() ? "; that learners of a CPU device take turns is left out" : "");
    line("  {} of work, {:g} iteration{} from one turn to the next", duration(cycle.microseconds * 1000), cycle.lag,
         cycle.lag == 1 ? "" : "s");
    for (const EdgeId id : cycle.edges) {
      const Edge& edge = plan_.edges[id];
      line("  {} -> {}, distance {}{}", task_name(edge.from), task_name(edge.to), edge.distance,
           edge.what.empty() ? "" : " (" + edge.what + ")");
    }
  }

  const TraceFile& trace_;
  const Plan& plan_;
  const SummaryOptions& options_;
  const TraceSummary summary_;
  const std::vector<LayerTime> layers_ = layer_times(trace_);
  const std::vector<std::string> processes_ = many_processes(plan_);
  std::vector<Group<LaneSummary>> lanes_;
  std::vector<Group<TaskSummary>> tasks_;  // by total time
  size_t name_width_ = 0;
  std::string text_;
};

}  // namespace

std::string summarize(const TraceFile& trace, const SummaryOptions& options) {
  return Report(trace, options).text();
}

}  // namespace arbalest
