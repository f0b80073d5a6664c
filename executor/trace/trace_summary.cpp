// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <regex>
#include <utility>

#include "base/error.h"
#include "executor/trace/idle_causes.h"
#include "executor/trace/steady_state.h"
#include "executor/trace/trace_intervals.h"

namespace arbalest {
namespace {

constexpr ClockId kBaseClock = 0;

// A time in which a lane was idle: from the end of one span to the beginning of `next`.
struct IdleTime {
  LaneId lane = kNone;
  Interval time;
  const TaskSpan* next = nullptr;
  std::vector<IdlePart> parts;
};

// The part of an idle time that is kept until the longest ones are known; these are then explained again in full.
struct KnownGap {
  int64_t from = 0;
  const TaskSpan* next = nullptr;
  int64_t length() const { return next->started - from; }
};

// Finds the long waits that are no part of an iteration, such as for what is made once: a few gaps, longer than an
// iteration each, which together have most of the cause's time. `waits`: its time in each gap of the steady state,
// but those that epochs begin with.
void find_rare(IdleShare& share, std::vector<LongWait> waits, const SteadyState& steady) {
  constexpr int64_t kMost = 3;      // gaps, however long the trace is
  constexpr int64_t kSpared = 100;  // iterations without one, for each
  const auto allowed = size_t(std::clamp((steady.last - steady.first + 1) / kSpared, int64_t{0}, kMost));
  std::sort(waits.begin(), waits.end(), [](const LongWait& a, const LongWait& b) { return a.ns > b.ns; });
  int64_t sum = 0;
  for (const LongWait& wait : waits) {
    if (share.rare.size() == allowed || double(wait.ns) <= steady.iteration_ns) break;
    share.rare.push_back(wait);
    sum += wait.ns;
  }
  if (2 * sum <= share.steady_ns) share.rare.clear();
}

// Iterations of an epoch; 0: unknown. The patterns of all of the base clock's relations are whole epochs, and reports'
// are one.
int64_t epoch_of(const Plan& plan) {
  int64_t epoch = 0;
  for (const ClockRelation& relation : plan.relations) {
    if (relation.fine == kBaseClock && (epoch == 0 || relation.period < epoch)) epoch = relation.period;
  }
  return epoch;
}

// Whether the iteration is among the first of an epoch, of so many, that is not the trace's first: a wait then comes
// back with each epoch.
bool begins_epoch(int64_t epoch, int64_t iteration) {
  constexpr int64_t kParts = 20;  // of an epoch, of which the first is its beginning
  return epoch > 0 && iteration >= epoch && iteration % epoch < std::max<int64_t>(1, epoch / kParts);
}

class Analysis {
 public:
  Analysis(const TraceFile& trace, const SummaryOptions& options)
      : trace_(trace),
        plan_(trace.plan),
        options_(options),
        index_(trace),
        idle_causes_(trace, index_, busy_),
        waited_(plan_.lanes.size(), 0) {
    lane_spans_.resize(plan_.lanes.size());
    for (const TaskSpan& span : trace_.tasks) lane_spans_[lane_of(span)].push_back(&span);
  }

  TraceSummary run() {
    summary_.begin = std::numeric_limits<int64_t>::max();
    for (const TaskSpan& span : trace_.tasks) {
      summary_.begin = std::min(summary_.begin, span.started);
      summary_.end = std::max(summary_.end, span.ended);
    }
    busy_ = busy_times(plan_, trace_.tasks);
    steady_ = find_steady_state(plan_, trace_.tasks, options_.warm_up);
    summary_.first_steady = steady_.first;
    summary_.last_steady = steady_.last;
    summary_.iteration_ns = steady_.iteration_ns;
    summary_.awaited_ns.assign(plan_.lanes.size(), 0);
    for (const LaneId lane : plan_.lanes.ids()) {
      if (!lane_spans_[lane].empty()) summarize_lane(lane);
    }
    summarize_tasks();
    list_slowest();
    list_gaps();
    summarize_compute();
    summarize_issuing();
    find_overlaps();
    find_hiding();
    find_critical_cycle();
    return std::move(summary_);
  }

 private:
  LaneId lane_of(const TaskSpan& span) const { return plan_.tasks[span.task].lane; }
  const std::string& name_of_task(TaskId task) const { return plan_.tasks[task].name; }

  void summarize_lane(LaneId lane) {
    const auto& spans = lane_spans_[lane];
    LaneSummary result;
    result.lane = lane;
    result.busy_ns = length(busy_[lane]);
    result.idle_ns = summary_.end - summary_.begin - result.busy_ns;

    int64_t steady_from = -1, steady_to = -1;
    for (const TaskSpan* span : spans) {
      if (!steady_.holds(plan_, *span)) continue;
      if (steady_from < 0) steady_from = span->started;
      steady_to = std::max(steady_to, span->ended);
    }
    result.steady_ns = steady_to - steady_from;

    std::map<std::string, int64_t> reasons, steady_reasons;
    const auto add = [](std::map<std::string, int64_t>& to, const std::string& why, int64_t ns) {
      if (ns > 0) to[why] += ns;
    };
    std::array<IdleShare, kIdleCauses> causes{};
    std::array<int64_t, kIdleCauses> longest{};
    std::array<std::vector<LongWait>, kIdleCauses> single;  // in the steady state, but those that epochs begin with
    const auto count_causes = [&](const IdleTime& idle, bool is_steady, bool of_epoch) {
      std::array<int64_t, kIdleCauses> sums{};
      for (const IdlePart& part : idle.parts) sums[size_t(part.cause)] += part.ns;
      const bool late = sums[size_t(IdleCause::Input)] + sums[size_t(IdleCause::Reading)] > 0;
      result.late += late;
      result.steady_late += late && is_steady;
      for (size_t cause = 0; cause < kIdleCauses; ++cause) {
        const int64_t ns = sums[cause];
        if (ns <= 0) continue;
        IdleShare& share = causes[cause];
        share.ns += ns;
        ++share.count;
        if (is_steady) share.steady_ns += ns, ++share.steady_count;
        if (is_steady && !of_epoch) single[cause].push_back({idle.time, ns});
        if (ns <= longest[cause]) continue;
        longest[cause] = ns;
        share.from = idle.time.from;
        share.to = idle.time.to;
        share.next = idle.next;
      }
    };
    const auto nothing_to_do = [&](const char* when, Interval time, const TaskSpan* next) {
      add(reasons, when, time.to - time.from);
      count_causes({lane, time, next, {{when, IdleCause::Nothing, kNone, time.to - time.from}}}, false, false);
    };
    nothing_to_do("nothing to do (start)", {summary_.begin, spans.front()->started}, spans.front());
    int64_t idle_from = spans.front()->ended;
    const int64_t epoch = epoch_of(plan_);
    for (size_t i = 1, base = 1; i < spans.size(); ++i) {  // base: the next span of the base clock
      base = std::max(base, i);
      while (base < spans.size() && plan_.tasks[spans[base]->task].clock != kBaseClock) ++base;
      if (spans[i]->started > idle_from) {
        IdleTime idle{lane, {idle_from, spans[i]->started}, spans[i], {}};
        idle.parts = idle_causes_.of(lane, idle.time, *idle.next);
        const bool is_steady = idle.time.from >= steady_from && idle.time.to <= steady_to;
        if (is_steady) result.steady_idle_ns += idle.time.to - idle.time.from;
        count_causes(idle, is_steady, base < spans.size() && begins_epoch(epoch, spans[base]->instance));
        if (plan_.lanes[lane].kind == Lane::Kind::Compute) count_awaited(idle, is_steady);
        for (const IdlePart& part : idle.parts) {
          add(reasons, part.why, part.ns);
          if (is_steady) add(steady_reasons, part.why, part.ns);
        }
        if (plan_.lanes[lane].kind != Lane::Kind::Host) gaps_.push_back({idle_from, spans[i]});
      }
      idle_from = std::max(idle_from, spans[i]->ended);
    }
    nothing_to_do("nothing to do (end)", {idle_from, summary_.end}, nullptr);
    result.reasons = longest_first(reasons);
    result.steady_reasons = longest_first(steady_reasons);
    for (size_t cause = 0; cause < kIdleCauses; ++cause) {
      causes[cause].cause = IdleCause(cause);
      find_rare(causes[cause], std::move(single[cause]), steady_);
      if (causes[cause].ns > 0) result.causes.push_back(causes[cause]);
    }
    std::stable_sort(result.causes.begin(), result.causes.end(),
                     [](const IdleShare& a, const IdleShare& b) { return a.ns > b.ns; });
    summary_.lanes.push_back(std::move(result));
  }

  void count_awaited(const IdleTime& idle, bool is_steady) {
    const bool counts = is_steady || summary_.iteration_ns <= 0;
    for (const IdlePart& part : idle.parts) {
      if (part.lane == kNone) continue;
      waited_[part.lane] += part.ns;
      if (counts && part.cause == IdleCause::Compute) summary_.awaited_ns[part.lane] += part.ns;
    }
  }

  static std::vector<IdleReason> longest_first(const std::map<std::string, int64_t>& reasons) {
    std::vector<IdleReason> list;
    for (const auto& [why, ns] : reasons) list.push_back({why, ns});
    std::stable_sort(list.begin(), list.end(), [](const IdleReason& a, const IdleReason& b) { return a.ns > b.ns; });
    return list;
  }

  void summarize_tasks() {
    for (const TaskId task : plan_.tasks.ids()) {
      TaskSummary result;
      result.task = task;
      for (const TaskSpan* span : index_.of(task)) {
        if (!has_work(span->instance, plan_.tasks[task].every)) continue;
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
    const size_t count = std::min(gaps_.size(), size_t(std::max(0, options_.gaps)));
    const auto rank = [&](const KnownGap& gap) {
      return std::pair(plan_.lanes[lane_of(*gap.next)].kind == Lane::Kind::Compute, gap.length());
    };
    std::partial_sort(gaps_.begin(), gaps_.begin() + std::ptrdiff_t(count), gaps_.end(),
                      [&](const KnownGap& a, const KnownGap& b) { return rank(a) > rank(b); });
    for (size_t i = 0; i < count; ++i) {
      const TaskSpan* next = gaps_[i].next;
      IdleTime idle{lane_of(*next), {gaps_[i].from, next->started}, next, {}};
      idle.parts = idle_causes_.of(idle.lane, idle.time, *next);
      const auto largest = std::max_element(idle.parts.begin(), idle.parts.end(),
                                            [](const IdlePart& a, const IdlePart& b) { return a.ns < b.ns; });
      summary_.gaps.push_back({idle.lane, idle.time.from, idle.time.to, idle.next, largest->why});
    }
  }

  void summarize_compute() {
    int64_t time = 0, idle = 0;
    for (const LaneSummary& lane : summary_.lanes) {
      if (plan_.lanes[lane.lane].kind != Lane::Kind::Compute) continue;
      time += lane.steady_ns;
      idle += lane.steady_idle_ns;
    }
    if (time > 0) summary_.compute_idle = double(idle) / double(time);
  }

  // Over the steady state, all threads that issue; instances of slower clocks count if they fall in it.
  void summarize_issuing() {
    if (trace_.issues.empty()) return;
    int64_t from = std::numeric_limits<int64_t>::max(), to = -1;
    for (const IssueSpan& span : trace_.issues) {
      const bool base = plan_.tasks[span.task].clock == kBaseClock;
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
      const bool base = plan_.tasks[span.task].clock == kBaseClock;
      if (!base || span.instance < summary_.first_steady || span.instance > summary_.last_steady) continue;
      of_iteration[size_t(span.instance - summary_.first_steady)] += span.ended - span.started;
    }
    summary_.issuing_ns = double(sum) / double(iterations);
    std::nth_element(of_iteration.begin(), of_iteration.begin() + iterations / 2, of_iteration.end());
    summary_.issuing_median_ns = double(of_iteration[size_t(iterations / 2)]);
  }

  void find_overlaps() {
    for (const LaneSummary& a : summary_.lanes) {
      for (const LaneSummary& b : summary_.lanes) {
        if (a.lane == b.lane || a.busy_ns == 0) continue;
        const int64_t both = common(busy_[a.lane], busy_[b.lane]);
        summary_.overlaps.push_back({a.lane, b.lane, double(both) / double(a.busy_ns)});
      }
    }
  }

  // Compute lanes of a device as one; of all devices for kNone.
  Intervals compute_of(int32_t device) const {
    Intervals all;
    for (const LaneId lane : busy_.ids()) {
      const Lane& known = plan_.lanes[lane];
      if (known.kind != Lane::Kind::Compute || (device != kNone && known.device != device)) continue;
      all.insert(all.end(), busy_[lane].begin(), busy_[lane].end());
    }
    return merged(std::move(all));
  }

  void find_hiding() {
    std::map<int32_t, Intervals> compute;  // by device
    std::map<Lane::Kind, std::vector<Hiding>> by_kind;
    for (const LaneSummary& summary : summary_.lanes) {
      const Lane& lane = plan_.lanes[summary.lane];
      if (lane.kind == Lane::Kind::Host || lane.kind == Lane::Kind::Compute) continue;
      const auto [cover, added] = compute.try_emplace(lane.device);
      if (added) cover->second = compute_of(lane.device);
      summary_.hiding.push_back({summary.lane, lane.kind, summary.busy_ns, common(busy_[summary.lane], cover->second),
                                 waited_[summary.lane]});
      by_kind[lane.kind].push_back(summary_.hiding.back());
    }
    for (const auto& [kind, lanes] : by_kind) {
      if (lanes.size() < 2) continue;
      Hiding all{kNone, kind};
      for (const Hiding& one : lanes) {
        all.busy_ns += one.busy_ns;
        all.hidden_ns += one.hidden_ns;
        all.waited_ns += one.waited_ns;
      }
      summary_.hiding.push_back(all);
    }
  }

  void find_critical_cycle() {
    Plan plan = plan_;
    for (const TaskSummary& task : summary_.tasks) {
      Task& known = plan.tasks[task.task];
      known.microseconds = task.mean_ns / 1000 / known.every;
    }
    // Mean durations over the iterations that the time per iteration is averaged over: all of the steady state but its
    // first, at whose end that time begins.
    Table<TaskId, std::pair<double, int64_t>> steady(plan.tasks.size());  // ns and instances
    for (const TaskSpan& span : trace_.tasks) {
      if (!steady_.holds(plan, span) || span.instance == steady_.first) continue;
      steady[span.task].first += double(span.ended - span.started);
      ++steady[span.task].second;
    }
    for (const TaskId task : steady.ids()) {
      const auto& [ns, instances] = steady[task];
      if (instances > 0) plan.tasks[task].microseconds = ns / double(instances) / 1000;
    }
    summary_.critical = critical_cycle(plan);
    summary_.slack = slack_of(plan, summary_.critical);
  }

  const TraceFile& trace_;
  const Plan& plan_;
  const SummaryOptions& options_;
  SpanIndex index_;
  Table<LaneId, std::vector<const TaskSpan*>> lane_spans_;  // by start
  Table<LaneId, Intervals> busy_;
  const IdleCauses idle_causes_;
  SteadyState steady_;
  std::vector<KnownGap> gaps_;     // of device lanes
  Table<LaneId, int64_t> waited_;  // ns of gaps of compute lanes while a task of it ran
  TraceSummary summary_;
};

}  // namespace

std::string alike(const std::string& name) {
  static const std::regex number("(cuda:|cpu:|learner )[0-9]+");
  return std::regex_replace(name, number, "$1*");
}

std::string kind_of(const Task& task) {
  std::string name = alike(task.name);
  if (task.kind != Task::Kind::Fill) return name;
  const size_t end = name.find_last_not_of("0123456789");
  if (end != name.npos && end + 1 < name.size() && name[end] == ' ') name.resize(end);
  return name;
}

TraceSummary analyze(const TraceFile& trace, const SummaryOptions& options) {
  if (trace.tasks.empty()) throw GraphError("the trace holds no task that started and ended");
  return Analysis(trace, options).run();
}

}  // namespace arbalest
