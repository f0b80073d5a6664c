// The terminal report of trace_summary.h.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "executor/trace_summary.h"

namespace arbalest {
namespace {

std::string duration(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.1f} µs", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.2f} ms", ns / 1e6);
  return fmt::format("{:.2f} s", ns / 1e9);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? double(part) / double(whole) : 0;
}

class Report {
 public:
  Report(const TraceFile& trace, const SummaryOptions& options)
      : trace_(trace), plan_(trace.plan), options_(options), summary_(analyze(trace, options)) {
    for (const LaneSummary& lane : summary_.lanes) name_width_ = std::max(name_width_, lane_name(lane.lane).size());
    for (const TaskSummary& task : summary_.tasks) name_width_ = std::max(name_width_, task_name(task.task).size());
  }

  std::string text() {
    heading();
    steady_state();
    lanes();
    tasks();
    slowest();
    gaps();
    overlaps();
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
  const std::string& lane_name(LaneId lane) const { return plan_.lanes[size_t(lane)].name; }
  const std::string& task_name(TaskId task) const { return plan_.tasks[size_t(task)].name; }

  void heading() {
    line("{}{} task instances over {}", trace_.graph.empty() ? "" : trace_.graph + ": ", trace_.tasks.size(),
         duration(double(summary_.end - summary_.begin)));
    if (trace_.dropped > 0) line("{} older spans were dropped: the trace holds the newest only", trace_.dropped);
    if (trace_.unfinished > 0) line("{} instances had no known start or end and are left out", trace_.unfinished);
  }

  void steady_state() {
    line("\nSteady state");
    if (summary_.iteration_ns > 0) {
      line("  iterations {} to {}: {} each", summary_.first_steady, summary_.last_steady,
           duration(summary_.iteration_ns));
    } else {
      line("  too few iterations");
    }
    if (summary_.compute_idle >= 0) line("  compute lanes idle between tasks: {}", percent(summary_.compute_idle));
    if (summary_.issuing_ns < 0) {
      line("  issuing: not recorded");
    } else {
      line("  issuing: {} of host time per iteration; {} in the median iteration, other clocks apart",
           duration(summary_.issuing_ns), duration(summary_.issuing_median_ns));
    }
  }

  void reasons(const char* label, const std::vector<IdleReason>& list, int64_t whole) {
    for (size_t i = 0; i < std::min(list.size(), size_t(options_.reasons)); ++i) {
      line("  {:<{}}  {:>8} {}: {}", "", name_width_, percent(ratio(list[i].ns, whole)), label, list[i].why);
    }
  }

  void lanes() {
    line("\n{:<{}}  {:>8} {:>8}", "Lanes", name_width_ + 2, "busy", "idle");
    for (const LaneSummary& lane : summary_.lanes) {
      const int64_t whole = lane.busy_ns + lane.idle_ns;
      line("  {:<{}}  {:>8} {:>8}", lane_name(lane.lane), name_width_, percent(ratio(lane.busy_ns, whole)),
           percent(ratio(lane.idle_ns, whole)));
      reasons("idle", lane.reasons, whole);
      if (lane.steady_idle_ns > 0 && plan_.lanes[size_t(lane.lane)].kind == Lane::Kind::Compute) {
        reasons("idle in the steady state", lane.steady_reasons, lane.steady_ns);
      }
    }
  }

  void tasks() {
    line("\n{:<{}}  {:>9} {:>11} {:>11} {:>11}", "Tasks", name_width_ + 2, "instances", "mean", "longest", "total");
    for (const TaskSummary& task : summary_.tasks) {
      line("  {:<{}}  {:>9} {:>11} {:>11} {:>11}", task_name(task.task), name_width_, task.count,
           duration(task.mean_ns), duration(double(task.longest_ns)), duration(double(task.total_ns)));
    }
  }

  void slowest() {
    if (summary_.slowest.empty()) return;
    line("\nSlowest instances");
    for (const TaskSpan* span : summary_.slowest) {
      line("  {:<{}}  {:>11} iteration {} at {}", task_name(span->task), name_width_,
           duration(double(span->ended - span->started)), span->instance, duration(double(span->started)));
    }
  }

  void gaps() {
    if (summary_.gaps.empty()) return;
    line("\nLargest gaps");
    for (const Gap& gap : summary_.gaps) {
      line("  {:<{}}  {:>11} before {} {} at {}: {}", lane_name(gap.lane), name_width_,
           duration(double(gap.to - gap.from)), task_name(gap.next->task), gap.next->instance,
           duration(double(gap.from)), gap.why);
    }
  }

  // Of compute lanes among each other, and of host work with them.
  void overlaps() {
    bool first = true;
    for (const Overlap& overlap : summary_.overlaps) {
      const Lane& lane = plan_.lanes[size_t(overlap.lane)];
      const Lane& other = plan_.lanes[size_t(overlap.other)];
      const bool near =
          lane.kind == Lane::Kind::Host || (lane.kind == Lane::Kind::Compute && lane.device == other.device);
      if (!near || other.kind != Lane::Kind::Compute) continue;
      if (std::exchange(first, false)) line("\nOverlap");
      line("  {:<{}}  {:>8} of its busy time {} is busy too", lane_name(overlap.lane), name_width_,
           percent(overlap.share), lane_name(overlap.other));
    }
  }

  static const char* name_of_all(Lane::Kind kind) {
    switch (kind) {
      case Lane::Kind::CopyIn: return "all copies in";
      case Lane::Kind::CopyOut: return "all copies out";
      case Lane::Kind::Validate: return "all validation";
      default: return "all collectives";
    }
  }

  void hiding() {
    if (summary_.hiding.empty()) return;
    line("\n{:<{}}  {:>11} {:>8} {:>14}", "Beside compute", name_width_ + 2, "busy", "hidden", "compute waits");
    for (const Hiding& part : summary_.hiding) {
      line("  {:<{}}  {:>11} {:>8} {:>14}", part.lane == kNone ? name_of_all(part.kind) : lane_name(part.lane),
           name_width_, duration(double(part.busy_ns)), percent(part.share()), duration(double(part.waited_ns)));
    }
  }

  void critical() {
    const Cycle& cycle = summary_.critical;
    if (cycle.edges.empty()) return;
    line("\nCritical cycle: no schedule takes less than {} per iteration", duration(cycle.bound() * 1000));
    line("  {} of work, {:g} iteration{} from one turn to the next", duration(cycle.microseconds * 1000), cycle.lag,
         cycle.lag == 1 ? "" : "s");
    for (const EdgeId id : cycle.edges) {
      const Edge& edge = plan_.edges[size_t(id)];
      line("  {} -> {}, distance {}{}", task_name(edge.from), task_name(edge.to), edge.distance,
           edge.what.empty() ? "" : " (" + edge.what + ")");
    }
  }

  const TraceFile& trace_;
  const Plan& plan_;
  const SummaryOptions& options_;
  const TraceSummary summary_;
  size_t name_width_ = 0;
  std::string text_;
};

}  // namespace

std::string summarize(const TraceFile& trace, const SummaryOptions& options) {
  return Report(trace, options).text();
}

}  // namespace arbalest
