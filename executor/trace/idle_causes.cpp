// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/idle_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "executor/plan/strategy.h"

namespace arbalest {

namespace {

IdleCause cause_of_lane(Lane::Kind kind) {
  switch (kind) {
    case Lane::Kind::Averaging:
    case Lane::Kind::Collectives: return IdleCause::Averaging;
    case Lane::Kind::CopyIn: return IdleCause::Copy;
    case Lane::Kind::CopyOut: return IdleCause::Results;
    case Lane::Kind::Validate: return IdleCause::Validation;
    case Lane::Kind::Compute: return IdleCause::Compute;
    case Lane::Kind::Host: break;
  }
  return IdleCause::Results;
}

std::string waiting_for(const Plan& plan, const Edge& edge) {
  const std::string& from = plan.tasks[edge.from].name;
  if (edge.why == Edge::Why::Pace) return fmt::format("pace ({})", from);
  if (edge.why == Edge::Why::Reuse) {
    return fmt::format("waiting for {} (to free {})", from, edge.what.empty() ? "a slot" : edge.what);
  }
  return edge.what.empty() ? fmt::format("waiting for {}", from) : fmt::format("waiting for {} ({})", from, edge.what);
}

// How much of that time the intervals cover.
int64_t overlap(const Intervals& busy, int64_t from, int64_t to) {
  auto at = std::partition_point(busy.begin(), busy.end(), [&](const Interval& one) { return one.to <= from; });
  int64_t sum = 0;
  for (; at != busy.end() && at->from < to; ++at) sum += std::min(at->to, to) - std::max(at->from, from);
  return sum;
}

// When as many batches were read at once as tasks of the host ever ran. None if threads read less than half of the
// time: what waits for one of them waits for it to wake.
Intervals all_reading(const TraceFile& trace) {
  struct Change {
    int64_t time = 0;
    int8_t tasks = 0, fills = 0;  // so many more
  };
  const auto fills_of = [&](const TaskSpan& span) {
    return int8_t(trace.plan.tasks[span.task].kind == Task::Kind::Fill);
  };
  int64_t read = 0, from = std::numeric_limits<int64_t>::max(), to = 0;
  for (const TaskSpan& span : trace.tasks) {
    if (!trace.plan.on_host(span.task)) continue;
    from = std::min(from, span.started);
    to = std::max(to, span.ended);
    if (fills_of(span) != 0) read += span.ended - span.started;
  }
  if (read == 0 || 2 * read < to - from) return {};
  std::vector<Change> changes;
  for (const TaskSpan& span : trace.tasks) {
    if (!trace.plan.on_host(span.task)) continue;
    changes.push_back({span.started, 1, fills_of(span)});
    changes.push_back({span.ended, -1, int8_t(-fills_of(span))});
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return std::pair(a.time, a.tasks) < std::pair(b.time, b.tasks); });
  int64_t tasks = 0, fills = 0, threads = 0;
  for (const Change& change : changes) threads = std::max(threads, tasks += change.tasks);
  if (2 * read < threads * (to - from)) return {};
  Intervals times;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    fills += changes[i].fills;
    if (fills == threads) times.push_back({changes[i].time, changes[i + 1].time});
  }
  return merged(std::move(times));
}

}  // namespace

// From the end of a gap back to its beginning.
class IdleCauses::WayBack {
 public:
  WayBack(const IdleCauses& causes, LaneId lane, const Interval& gap)
      : causes_(causes), plan_(causes.plan_), lane_(lane), from_(gap.from), at_(gap.to) {}

  std::vector<IdlePart> run(const TaskSpan& next) {
    constexpr int kDeepest = 32;  // instances; what is left then is the last one's
    auto [edge, needed] = causes_.last_needed(next);
    stages_of(next, needed == nullptr ? from_ : needed->ended);
    for (int depth = 0; at_ > from_ && edge != nullptr; ++depth) {
      const Spent on{causes_.wait_for(*edge), causes_.cause_of(*edge), plan_.tasks[edge->from].lane};
      if (edge->why == Edge::Why::Pace || depth == kDeepest) {
        back_to(from_, on);
        break;
      }
      back_to(needed->started, on);
      const auto [before, before_needed] = causes_.last_needed(*needed);
      wait_of(*needed, before_needed == nullptr ? from_ : before_needed->ended, on);
      edge = before;
      needed = before_needed;
    }
    return std::move(parts_);
  }

 private:
  struct Spent {
    std::string why;
    IdleCause cause = IdleCause::Nothing;
    LaneId lane = kNone;
  };

  // Adds the stages that `next` passed through after everything that it needs had ended.
  void stages_of(const TaskSpan& next, int64_t satisfied) {
    const bool on_host = plan_.on_host(next.task);
    const int64_t ready = std::max(satisfied, next.ready), issued = std::max(ready, next.issued);
    back_to(issued, {"starting", IdleCause::Starting});
    back_to(ready, on_host ? Spent{"waiting for a thread", IdleCause::Thread} : Spent{"issuing", IdleCause::Issuing});
    back_to(satisfied, {"completion not yet noticed", IdleCause::Noticing});
  }

  // Adds the stages of an earlier instance on the way to `next`; `own` is the cause for its own run time. It may have
  // waited for a host thread or, on a CPU device, for its turn. A batch whose fill waits for a thread counts as not
  // read yet, and one whose copy is not issued as on its way.
  void wait_of(const TaskSpan& span, int64_t satisfied, const Spent& own) {
    const Task& task = plan_.tasks[span.task];
    if (task.kind == Task::Kind::Fill || task.kind == Task::Kind::CopyIn) return back_to(satisfied, own);
    if (plan_.on_host(span.task)) {
      const int64_t ready = std::max(satisfied, span.ready);
      back_to(std::max(ready, span.issued), own);
      back_to(ready,
              {fmt::format("waiting for a thread for {}", task.name), causes_.waiting_for_thread(ready, span.issued)});
      return back_to(satisfied, own);
    }
    turns_of_ = task.lane;
    back_to(satisfied, {fmt::format("starting {}", task.name), IdleCause::Starting});
    turns_of_ = kNone;
  }

  void back_to(int64_t time, const Spent& on) {
    const int64_t begin = std::clamp(time, from_, at_);
    int64_t rest = at_ - begin;
    if (rest == 0) return;
    for (const LaneId other : causes_.sharing_thread(lane_)) {
      const int64_t busy = std::min(rest, overlap(causes_.busy_[other], begin, at_));
      if (busy == 0) continue;
      add({"thread busy with " + plan_.lanes[other].name, IdleCause::Turns, other}, busy);
      rest -= busy;
    }
    if (turns_of_ != kNone && plan_.lanes[turns_of_].device != plan_.lanes[lane_].device) {
      for (const LaneId other : causes_.sharing_thread(turns_of_)) {
        const int64_t busy = std::min(rest, overlap(causes_.busy_[other], begin, at_));
        if (busy == 0) continue;
        const Lane& known = plan_.lanes[other];
        add({"waiting for " + known.name, cause_of_lane(known.kind), other}, busy);
        rest -= busy;
      }
    }
    add(on, rest);
    at_ = begin;
  }

  void add(const Spent& on, int64_t ns) {
    if (ns == 0) return;
    const auto same =
        std::find_if(parts_.begin(), parts_.end(), [&](const IdlePart& part) { return part.why == on.why; });
    if (same == parts_.end()) {
      parts_.push_back({on.why, on.cause, on.lane, ns});
    } else {
      same->ns += ns;
    }
  }

  const IdleCauses& causes_;
  const Plan& plan_;
  const LaneId lane_;
  const int64_t from_;
  int64_t at_;               // what is before is not explained yet
  LaneId turns_of_ = kNone;  // a lane that waits, if other lanes of its device may have had the thread
  std::vector<IdlePart> parts_;
};

IdleCauses::IdleCauses(const TraceFile& trace, const SpanIndex& index, const Table<LaneId, Intervals>& busy)
    : plan_(trace.plan),
      index_(index),
      busy_(busy),
      into_(trace.plan.tasks.size()),
      sharing_(trace.plan.lanes.size()),
      reading_(all_reading(trace)) {
  for (const Edge& edge : plan_.edges) {
    into_[edge.to].push_back(&edge);
    waiting_.push_back(waiting_for(plan_, edge));
  }
  for (const LaneId lane : plan_.lanes.ids()) {
    const int32_t device = plan_.lanes[lane].device;
    if (device == kNone || plan_.devices[size_t(device)].kind != PlanDevice::Kind::Cpu) continue;
    for (const LaneId other : plan_.lanes.ids()) {
      if (other != lane && plan_.lanes[other].device == device) sharing_[lane].push_back(other);
    }
  }
}

std::vector<IdlePart> IdleCauses::of(LaneId lane, const Interval& gap, const TaskSpan& next) const {
  return WayBack(*this, lane, gap).run(next);
}

// The edge that was satisfied last, and the instance that satisfied it.
std::pair<const Edge*, const TaskSpan*> IdleCauses::last_needed(const TaskSpan& span) const {
  std::pair<const Edge*, const TaskSpan*> last{nullptr, nullptr};
  for (const Edge* edge : into_[span.task]) {
    const int64_t instance = needed_instance(plan_, *edge, span.instance);
    const TaskSpan* needed = instance < 0 ? nullptr : index_.find(edge->from, instance);
    if (needed == nullptr || (last.second != nullptr && needed->ended <= last.second->ended)) continue;
    last = {edge, needed};
  }
  return last;
}

IdleCause IdleCauses::cause_of(const Edge& edge) const {
  if (edge.why == Edge::Why::Pace) return IdleCause::Pace;
  const Task& from = plan_.tasks[edge.from];
  const Lane::Kind lane = plan_.lanes[from.lane].kind;
  if (lane != Lane::Kind::Host) return cause_of_lane(lane);
  switch (from.kind) {
    case Task::Kind::Fill: return IdleCause::Input;
    case Task::Kind::ValidationBegin:
    case Task::Kind::ValidationEnd: return IdleCause::Validation;
    default: return IdleCause::Results;
  }
}

// The cause if a host task was ready but no host thread was free: Reading if all threads read batches for more than
// half of that time.
IdleCause IdleCauses::waiting_for_thread(int64_t from, int64_t to) const {
  return 2 * overlap(reading_, from, to) > to - from ? IdleCause::Reading : IdleCause::Thread;
}

namespace {

bool sums_gradients(const TracedRun& run) {
  const Strategy* strategy = find_strategy(run.strategy);
  return strategy && strategy->facts().sums_gradients;
}

}  // namespace

std::string agreeing_in_words(const TracedRun& run) {
  return sums_gradients(run) ? "summing gradients" : "averaging";
}

std::string in_words(IdleCause cause, const TracedRun& run) {
  switch (cause) {
    case IdleCause::Nothing: return "there was nothing to do before its first task or after its last";
    case IdleCause::Input: return "the next batch was not read yet";
    case IdleCause::Copy: return "the next batch was on its way to the device";
    case IdleCause::Averaging:
      if (sums_gradients(run)) return "gradients of all learners were being summed";
      // A trace may tell no strategy, or one that only the program knows that wrote it.
      return find_strategy(run.strategy) ? "models were being averaged" : "models or gradients were being averaged";
    case IdleCause::Results: return "results of earlier batches had not been taken yet";
    case IdleCause::Validation: return "validation was not done with what it needs";
    case IdleCause::Compute: return "a learner was not done computing yet";
    case IdleCause::Turns: return "another queue of the same device had its turn";
    case IdleCause::Pace: return "the host was as far ahead as it may be";
    case IdleCause::Noticing: return "the host had not noticed yet that it may go on";
    case IdleCause::Thread: return "no thread of the host was free";
    case IdleCause::Reading: return "all threads of the host were reading batches";
    case IdleCause::Issuing: return "the host was still issuing its next task";
    case IdleCause::Starting: return "the device was about to start its next task";
  }
  return "";
}

}  // namespace arbalest
