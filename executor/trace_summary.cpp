#include "executor/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "graph/error.h"

namespace arbalest {
namespace {

struct Interval {
  int64_t from = 0, to = 0;
};

constexpr ClockId kBaseClock = 0;

// Between two spans of a lane: from where the first left it idle to where `next` began.
struct IdleTime {
  LaneId lane = kNone;
  Interval time;
  const TaskSpan* next = nullptr;
  std::vector<IdleReason> parts;
};

class Analysis {
 public:
  Analysis(const TraceFile& trace, const SummaryOptions& options)
      : trace_(trace), plan_(trace.plan), options_(options), index_(trace), into_(plan_.tasks.size()) {
    for (const Edge& edge : plan_.edges) into_[size_t(edge.to)].push_back(&edge);
    lane_spans_.resize(plan_.lanes.size());
    for (const TaskSpan& span : trace_.tasks) lane_spans_[size_t(lane_of(span))].push_back(&span);
  }

  TraceSummary run() {
    summary_.begin = std::numeric_limits<int64_t>::max();
    for (const TaskSpan& span : trace_.tasks) {
      summary_.begin = std::min(summary_.begin, span.started);
      summary_.end = std::max(summary_.end, span.ended);
    }
    busy_.resize(plan_.lanes.size());
    find_steady_state();
    for (size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
      if (!lane_spans_[lane].empty()) summarize_lane(LaneId(lane));
    }
    summarize_tasks();
    list_slowest();
    list_gaps();
    summarize_compute();
    summarize_issuing();
    find_overlaps();
    find_critical_cycle();
    return std::move(summary_);
  }

 private:
  LaneId lane_of(const TaskSpan& span) const { return plan_.tasks[size_t(span.task)].lane; }
  const std::string& name_of_task(TaskId task) const { return plan_.tasks[size_t(task)].name; }
  bool steady(const TaskSpan& span) const {
    return plan_.tasks[size_t(span.task)].clock == kBaseClock && span.instance >= summary_.first_steady &&
           span.instance <= summary_.last_steady;
  }

  // Iterations of the base clock without the first and last few, and how long one takes: from end to end of the task
  // that takes the most time, on a compute lane where there is one.
  void find_steady_state() {
    int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
    std::vector<int64_t> total(plan_.tasks.size(), 0);
    for (const TaskSpan& span : trace_.tasks) {
      if (plan_.tasks[size_t(span.task)].clock != kBaseClock) continue;
      first = std::min(first, span.instance);
      last = std::max(last, span.instance);
      total[size_t(span.task)] += span.ended - span.started;
    }
    if (last < first) return;
    const auto cut = int64_t(std::ceil(options_.warm_up * double(last - first + 1)));
    summary_.first_steady = first + cut;
    summary_.last_steady = last - cut;
    TaskId pulse = kNone;
    const auto on_compute = [&](TaskId task) {
      return plan_.lanes[size_t(plan_.tasks[size_t(task)].lane)].kind == Lane::Kind::Compute;
    };
    for (TaskId task = 0; task < TaskId(plan_.tasks.size()); ++task) {
      if (total[size_t(task)] == 0) continue;
      if (pulse == kNone ||
          std::pair(on_compute(task), total[size_t(task)]) > std::pair(on_compute(pulse), total[size_t(pulse)])) {
        pulse = task;
      }
    }
    if (pulse == kNone) return;
    const TaskSpan* a = index_.find(pulse, summary_.first_steady);
    const TaskSpan* b = index_.find(pulse, summary_.last_steady);
    if (a != nullptr && b != nullptr && b->instance > a->instance) {
      summary_.iteration_ns = double(b->ended - a->ended) / double(b->instance - a->instance);
    }
  }

  static std::vector<Interval> merged(const std::vector<const TaskSpan*>& by_start) {
    std::vector<Interval> merged;
    for (const TaskSpan* span : by_start) {
      if (merged.empty() || span->started > merged.back().to) {
        merged.push_back({span->started, span->ended});
      } else {
        merged.back().to = std::max(merged.back().to, span->ended);
      }
    }
    return merged;
  }

  static int64_t length(const std::vector<Interval>& intervals) {
    int64_t sum = 0;
    for (const Interval& interval : intervals) sum += interval.to - interval.from;
    return sum;
  }

  void summarize_lane(LaneId lane) {
    const auto& spans = lane_spans_[size_t(lane)];
    busy_[size_t(lane)] = merged(spans);
    LaneSummary result;
    result.lane = lane;
    result.busy_ns = length(busy_[size_t(lane)]);
    result.idle_ns = summary_.end - summary_.begin - result.busy_ns;

    int64_t steady_from = -1, steady_to = -1;
    for (const TaskSpan* span : spans) {
      if (!steady(*span)) continue;
      if (steady_from < 0) steady_from = span->started;
      steady_to = std::max(steady_to, span->ended);
    }
    result.steady_ns = steady_to - steady_from;

    std::map<std::string, int64_t> reasons, steady_reasons;
    const auto add = [](std::map<std::string, int64_t>& to, const std::string& why, int64_t ns) {
      if (ns > 0) to[why] += ns;
    };
    add(reasons, "nothing to do (start)", spans.front()->started - summary_.begin);
    int64_t idle_from = spans.front()->ended;
    for (size_t i = 1; i < spans.size(); ++i) {
      if (spans[i]->started > idle_from) {
        IdleTime idle{lane, {idle_from, spans[i]->started}, spans[i], {}};
        idle.parts = explain(idle);
        const bool is_steady = idle.time.from >= steady_from && idle.time.to <= steady_to;
        if (is_steady) result.steady_idle_ns += idle.time.to - idle.time.from;
        for (const IdleReason& part : idle.parts) {
          add(reasons, part.why, part.ns);
          if (is_steady) add(steady_reasons, part.why, part.ns);
        }
        if (plan_.lanes[size_t(lane)].kind != Lane::Kind::Host) idle_times_.push_back(std::move(idle));
      }
      idle_from = std::max(idle_from, spans[i]->ended);
    }
    add(reasons, "nothing to do (end)", summary_.end - idle_from);
    result.reasons = longest_first(reasons);
    result.steady_reasons = longest_first(steady_reasons);
    summary_.lanes.push_back(std::move(result));
  }

  static std::vector<IdleReason> longest_first(const std::map<std::string, int64_t>& reasons) {
    std::vector<IdleReason> list;
    for (const auto& [why, ns] : reasons) list.push_back({why, ns});
    std::stable_sort(list.begin(), list.end(), [](const IdleReason& a, const IdleReason& b) { return a.ns > b.ns; });
    return list;
  }

  // Cuts the idle time where what held `next` back changed: its last edge, then the news of it, then issuing, then the
  // device.
  std::vector<IdleReason> explain(const IdleTime& idle) const {
    const TaskSpan& next = *idle.next;
    const Edge* last = nullptr;
    int64_t satisfied = -1;
    for (const Edge* edge : into_[size_t(next.task)]) {
      const int64_t instance = needed_instance(plan_, *edge, next.instance);
      const TaskSpan* needed = instance < 0 ? nullptr : index_.find(edge->from, instance);
      if (needed == nullptr || needed->ended <= satisfied) continue;
      satisfied = needed->ended;
      last = edge;
    }
    std::vector<IdleReason> parts;
    int64_t at = idle.time.from;
    const auto until = [&](int64_t time, const std::string& why) {
      const int64_t end = std::min(time, idle.time.to);
      if (end <= at) return;
      parts.push_back({why, end - at});
      at = end;
    };
    if (last != nullptr) until(satisfied, wait_for(*last));
    until(next.ready, "completion not yet noticed");
    until(next.issued, plan_.on_host(next.task) ? "waiting for a thread" : "issuing");
    until(idle.time.to, "starting");
    return parts;
  }

  std::string wait_for(const Edge& edge) const {
    const std::string& from = name_of_task(edge.from);
    if (edge.why == Edge::Why::Pace) return fmt::format("pace ({})", from);
    if (edge.why == Edge::Why::Reuse) {
      return fmt::format("waiting for {} (to free {})", from, edge.what.empty() ? "a slot" : edge.what);
    }
    return edge.what.empty() ? fmt::format("waiting for {}", from)
                             : fmt::format("waiting for {} ({})", from, edge.what);
  }

  void summarize_tasks() {
    for (TaskId task = 0; task < TaskId(plan_.tasks.size()); ++task) {
      TaskSummary result;
      result.task = task;
      for (const TaskSpan* span : index_.of(task)) {
        ++result.count;
        result.total_ns += span->ended - span->started;
        result.longest_ns = std::max(result.longest_ns, span->ended - span->started);
      }
      if (result.count == 0) continue;
      result.mean_ns = double(result.total_ns) / double(result.count);
      summary_.tasks.push_back(result);
    }
    std::stable_sort(summary_.tasks.begin(), summary_.tasks.end(),
                     [](const TaskSummary& a, const TaskSummary& b) { return a.total_ns > b.total_ns; });
  }

  void list_slowest() {
    for (const TaskSpan& span : trace_.tasks) summary_.slowest.push_back(&span);
    const size_t count = std::min(summary_.slowest.size(), size_t(std::max(0, options_.slowest)));
    std::partial_sort(
        summary_.slowest.begin(), summary_.slowest.begin() + std::ptrdiff_t(count), summary_.slowest.end(),
        [](const TaskSpan* a, const TaskSpan* b) { return a->ended - a->started > b->ended - b->started; });
    summary_.slowest.resize(count);
  }

  void list_gaps() {
    const size_t count = std::min(idle_times_.size(), size_t(std::max(0, options_.gaps)));
    const auto rank = [&](const IdleTime& idle) {
      return std::pair(plan_.lanes[size_t(idle.lane)].kind == Lane::Kind::Compute, idle.time.to - idle.time.from);
    };
    std::partial_sort(idle_times_.begin(), idle_times_.begin() + std::ptrdiff_t(count), idle_times_.end(),
                      [&](const IdleTime& a, const IdleTime& b) { return rank(a) > rank(b); });
    for (size_t i = 0; i < count; ++i) {
      const IdleTime& idle = idle_times_[i];
      const auto largest = std::max_element(idle.parts.begin(), idle.parts.end(),
                                            [](const IdleReason& a, const IdleReason& b) { return a.ns < b.ns; });
      summary_.gaps.push_back({idle.lane, idle.time.from, idle.time.to, idle.next, largest->why});
    }
  }

  void summarize_compute() {
    int64_t time = 0, idle = 0;
    for (const LaneSummary& lane : summary_.lanes) {
      if (plan_.lanes[size_t(lane.lane)].kind != Lane::Kind::Compute) continue;
      time += lane.steady_ns;
      idle += lane.steady_idle_ns;
    }
    if (time > 0) summary_.compute_idle = double(idle) / double(time);
  }

  // Over the steady state, all threads that issue; instances of slower clocks count where they fall in it.
  void summarize_issuing() {
    if (trace_.issues.empty()) return;
    int64_t from = std::numeric_limits<int64_t>::max(), to = -1;
    for (const IssueSpan& span : trace_.issues) {
      const bool base = plan_.tasks[size_t(span.task)].clock == kBaseClock;
      if (!base || span.instance < summary_.first_steady || span.instance > summary_.last_steady) continue;
      from = std::min(from, span.started);
      to = std::max(to, span.ended);
    }
    const int64_t iterations = summary_.last_steady - summary_.first_steady + 1;
    if (to < from || iterations < 1) return;
    int64_t sum = 0;
    std::vector<int64_t> of_iteration(size_t(iterations), 0);
    for (const IssueSpan& span : trace_.issues) {
      if (span.started >= from && span.ended <= to) sum += span.ended - span.started;
      const bool base = plan_.tasks[size_t(span.task)].clock == kBaseClock;
      if (!base || span.instance < summary_.first_steady || span.instance > summary_.last_steady) continue;
      of_iteration[size_t(span.instance - summary_.first_steady)] += span.ended - span.started;
    }
    summary_.issuing_ns = double(sum) / double(iterations);
    std::nth_element(of_iteration.begin(), of_iteration.begin() + iterations / 2, of_iteration.end());
    summary_.issuing_median_ns = double(of_iteration[size_t(iterations / 2)]);
  }

  static int64_t common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
    int64_t sum = 0;
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      sum += std::max<int64_t>(0, std::min(a[i].to, b[j].to) - std::max(a[i].from, b[j].from));
      a[i].to < b[j].to ? ++i : ++j;
    }
    return sum;
  }

  void find_overlaps() {
    for (const LaneSummary& a : summary_.lanes) {
      for (const LaneSummary& b : summary_.lanes) {
        if (a.lane == b.lane || a.busy_ns == 0) continue;
        const int64_t both = common(busy_[size_t(a.lane)], busy_[size_t(b.lane)]);
        summary_.overlaps.push_back({a.lane, b.lane, double(both) / double(a.busy_ns)});
      }
    }
  }

  void find_critical_cycle() {
    Plan plan = plan_;
    for (const TaskSummary& task : summary_.tasks) plan.tasks[size_t(task.task)].microseconds = task.mean_ns / 1000;
    summary_.critical = critical_cycle(plan);
  }

  const TraceFile& trace_;
  const Plan& plan_;
  const SummaryOptions& options_;
  SpanIndex index_;
  std::vector<std::vector<const Edge*>> into_;            // by task
  std::vector<std::vector<const TaskSpan*>> lane_spans_;  // by lane, by start
  std::vector<std::vector<Interval>> busy_;               // by lane
  std::vector<IdleTime> idle_times_;                      // of device lanes
  TraceSummary summary_;
};

}  // namespace

TraceSummary analyze(const TraceFile& trace, const SummaryOptions& options) {
  if (trace.tasks.empty()) throw GraphError("the trace holds no task that started and ended");
  return Analysis(trace, options).run();
}

}  // namespace arbalest
