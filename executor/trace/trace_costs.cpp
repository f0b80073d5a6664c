// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/trace_costs.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "executor/trace/trace_intervals.h"

namespace arbalest {
namespace {

Contention contention_on(int32_t device, const TraceFile& trace, const SteadyState& steady) {
  const Plan& plan = trace.plan;
  Contention contention;
  if (plan.devices[size_t(device)].kind == PlanDevice::Kind::Cpu) return contention;
  std::map<TaskId, std::vector<int64_t>> took;
  std::set<LaneId> lanes;
  for (const TaskSpan& span : trace.tasks) {
    const LaneId lane = plan.tasks[span.task].lane;
    if (plan.lanes[lane].kind != Lane::Kind::Compute || plan.lanes[lane].device != device) continue;
    lanes.insert(lane);
    if (steady.holds(plan, span)) took[span.task].push_back(span.ended - span.started);
  }
  contention.measured = !took.empty();
  for (auto& [task, durations] : took) {
    const auto middle = durations.begin() + std::ptrdiff_t(durations.size() / 2);
    std::nth_element(durations.begin(), middle, durations.end());
    const int64_t alone = trace.alone.empty() ? -1 : trace.alone[task];
    contention.measured = contention.measured && alone >= 0;
    const double share = alone < 0 ? 1 / double(lanes.size()) : double(alone) / double(std::max<int64_t>(1, *middle));
    contention.alone[task] = std::min(1.0, share);
  }
  return contention;
}

// −1: too few samples to go by.
int64_t median(std::vector<int64_t> samples) {
  constexpr size_t kLeast = 5;
  if (samples.size() < kLeast) return -1;
  const auto middle = samples.begin() + std::ptrdiff_t(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

class CostMeasurement {
 public:
  CostMeasurement(const TraceFile& trace, const SteadyState& steady)
      : trace_(trace),
        plan_(trace.plan),
        steady_(steady),
        index_(trace),
        into_(plan_.tasks.size()),
        dispatch_(plan_.tasks.size()) {
    for (const Edge& edge : plan_.edges) into_[edge.to].push_back(&edge);
    costs_.tasks.resize(plan_.tasks.size());
    costs_.lanes.resize(plan_.lanes.size());
    for (const IssueSpan& span : trace_.issues) issue_ends_[{span.task, span.instance}] = span.ended;
  }

  Costs run() {
    measure_durations();
    measure_issuing();
    measure_threads();
    find_issuing();
    measure_starts();
    measure_notice();
    measure_dispatch();
    measure_contention();
    measure_nodes();
    return std::move(costs_);
  }

 private:
  const Lane& lane_of(TaskId task) const { return plan_.lanes[plan_.tasks[task].lane]; }
  bool in_time(int64_t from, int64_t to) const { return from >= steady_.begin && to <= steady_.end; }

  void measure_durations() {
    for (const TaskId task : plan_.tasks.ids()) {
      std::vector<const TaskSpan*> chosen;
      const bool base = plan_.tasks[task].clock == 0;
      for (const TaskSpan* span : index_.of(task)) {
        if (base ? steady_.holds(plan_, *span) : in_time(span->started, span->ended)) chosen.push_back(span);
      }
      if (chosen.empty()) chosen = index_.of(task);
      if (chosen.empty()) continue;
      // Turned so that instance n of the simulation takes what instance n took, if that is known.
      const size_t count = chosen.size(), turn = size_t(chosen.front()->instance) % count;
      std::vector<int64_t> durations(count);
      for (size_t i = 0; i < count; ++i) durations[(i + turn) % count] = chosen[i]->ended - chosen[i]->started;
      costs_.tasks[task].duration = std::move(durations);
    }
  }

  void measure_issuing() {
    Table<TaskId, std::vector<int64_t>> samples(plan_.tasks.size());
    for (const IssueSpan& span : trace_.issues) samples[span.task].push_back(span.ended - span.started);
    for (const TaskId task : samples.ids()) {
      costs_.tasks[task].issuing = std::max<int64_t>(0, median(std::move(samples[task])));
    }
  }

  // Counts the threads. If the trace does not say how many there were, the count is the largest number that was seen
  // at work at the same time.
  void measure_threads() {
    std::vector<int64_t> starts, ends;  // of host tasks
    for (const TaskSpan& span : trace_.tasks) {
      if (!plan_.on_host(span.task)) continue;
      starts.push_back(span.started);
      ends.push_back(span.ended);
    }
    std::sort(starts.begin(), starts.end());
    std::sort(ends.begin(), ends.end());
    const auto running = [&](int64_t time) {
      const auto until = [&](const std::vector<int64_t>& times) {
        return std::upper_bound(times.begin(), times.end(), time) - times.begin();
      };
      return int32_t(until(starts) - until(ends));
    };
    costs_.threads = trace_.threads;
    if (costs_.threads.host < 1) {
      costs_.threads.host = 1;
      for (const int64_t start : starts) costs_.threads.host = std::max(costs_.threads.host, running(start));
    }
    if (costs_.threads.issuing < 1) {
      costs_.threads.issuing = 1;
      for (const IssueSpan& span : trace_.issues) {
        costs_.threads.issuing = std::max(costs_.threads.issuing, span.thread + 1);
      }
    }
    std::map<int64_t, int32_t> changes;
    for (const int64_t start : starts) ++changes[start];
    for (const int64_t end : ends) --changes[end];
    const Intervals all_working = at_once(changes, costs_.threads.host);
    for (const TaskSpan& span : trace_.tasks) {
      if (!plan_.on_host(span.task) || span.ready < 0 || !in_time(span.ready, span.started)) continue;
      // It waited for a thread, which is simulated: from the beginning, or from when another instance took the
      // thread that was free then.
      if (running(span.ready) >= costs_.threads.host) continue;
      const int64_t waited = common_within(all_working, span.ready, span.started);
      dispatch_[span.task].push_back(std::max<int64_t>(0, span.started - span.ready - waited));
    }
  }

  // When `threads` threads at least were at it, of those that begin and end at these times.
  static Intervals at_once(const std::map<int64_t, int32_t>& changes, int32_t threads) {
    Intervals times;
    int32_t working = 0;
    for (const auto& [time, change] : changes) {
      const bool before = working >= threads, now = working + change >= threads;
      working += change;
      if (before == now) continue;
      if (now) times.push_back({time, time});
      if (!now) times.back().to = time;
    }
    return times;
  }

  // How much of the time from `from` to `to` the intervals cover.
  static int64_t common_within(const Intervals& intervals, int64_t from, int64_t to) {
    auto interval = std::upper_bound(intervals.begin(), intervals.end(), from,
                                     [](int64_t time, const Interval& one) { return time < one.to; });
    int64_t sum = 0;
    for (; interval != intervals.end() && interval->from < to; ++interval) {
      sum += std::min(to, interval->to) - std::max(from, interval->from);
    }
    return sum;
  }

  // Lanes that one thread serves in turn count as one: those of a CPU.
  int32_t server_of(LaneId lane) const {
    const int32_t device = plan_.lanes[lane].device;
    const bool cpu = device != kNone && plan_.devices[size_t(device)].kind == PlanDevice::Kind::Cpu;
    return cpu ? device : int32_t(plan_.devices.size()) + int32_t(lane);
  }

  void measure_starts() {
    std::map<int32_t, int64_t> free_from;  // by server
    Table<LaneId, std::vector<int64_t>> after_issue(plan_.lanes.size()), after_queue(plan_.lanes.size());
    for (const TaskSpan& span : trace_.tasks) {
      if (plan_.on_host(span.task)) continue;
      const LaneId lane = plan_.tasks[span.task].lane;
      int64_t& free = free_from.try_emplace(server_of(lane), -1).first->second;
      int64_t held = free;
      for (const Edge* edge : into_[span.task]) {
        if (edge->needs != Edge::Needs::Issued) continue;
        const TaskSpan* needed = index_.find(edge->from, needed_instance(plan_, *edge, span.instance));
        if (needed != nullptr) held = std::max(held, needed->ended);
      }
      free = std::max(free, span.ended);
      if (span.issued < 0 || !in_time(span.started, span.ended)) continue;
      auto& samples = held > span.issued ? after_queue : after_issue;
      samples[lane].push_back(std::max<int64_t>(0, span.started - std::max(held, span.issued)));
    }
    for (const LaneId lane : plan_.lanes.ids()) {
      LaneCosts& costs = costs_.lanes[lane];
      costs.after_issue = median(after_issue[lane]);
      costs.after_queue = std::max<int64_t>(0, median(after_queue[lane]));
      if (costs.after_issue < 0) costs.after_issue = longest_issuing(lane);
    }
  }

  // The delay from the beginning of issuing to the start, on a lane where it cannot be measured because every task
  // waited for something else after it was issued. It is the longest time that issuing takes.
  int64_t longest_issuing(LaneId lane) const {
    int64_t longest = 0;
    for (const TaskId task : plan_.tasks.ids()) {
      if (plan_.tasks[task].lane == lane) longest = std::max(longest, costs_.tasks[task].issuing);
    }
    return longest;
  }

  // Measures how long after a completion the instances that waited for it became ready. There is one number for the
  // host and one for each device, since one thread looks at all lanes of a device.
  void measure_notice() {
    std::map<int32_t, std::vector<int64_t>> notice;  // by device
    for (const TaskSpan& span : trace_.tasks) {
      if (span.ready < 0 || !in_time(span.ready, span.started)) continue;
      int64_t satisfied = -1;
      const Edge* last = nullptr;
      for (const Edge* edge : into_[span.task]) {
        const int64_t time = satisfied_at(*edge, needed_instance(plan_, *edge, span.instance));
        if (time <= satisfied) continue;
        satisfied = time;
        last = edge;
      }
      if (last == nullptr || last->needs != Edge::Needs::Done || span.ready < satisfied) continue;
      notice[lane_of(last->from).device].push_back(span.ready - satisfied);
      if (plan_.on_host(span.task) || span.issued < span.ready) continue;
      // Waiting for a thread is simulated.
      dispatch_[span.task].push_back(span.issued - span.ready - common_within(all_issuing_, span.ready, span.issued));
    }
    for (const LaneId lane : plan_.lanes.ids()) {
      costs_.lanes[lane].notice = std::max<int64_t>(0, median(notice[plan_.lanes[lane].device]));
    }
  }

  // When all threads that issue were at it.
  void find_issuing() {
    constexpr int64_t kBetweenIssues = 5000;  // ns at most that a thread needs from one issue to the next
    std::map<int32_t, Intervals> of_thread;
    for (const IssueSpan& span : trace_.issues) {
      Intervals& busy = of_thread[span.thread];
      if (!busy.empty() && span.started - busy.back().to < kBetweenIssues) {
        busy.back().to = std::max(busy.back().to, span.ended);
      } else {
        busy.push_back({span.started, span.ended});
      }
    }
    std::map<int64_t, int32_t> changes;
    for (const auto& [thread, busy] : of_thread) {
      for (const Interval& interval : busy) {
        ++changes[interval.from];
        --changes[interval.to];
      }
    }
    all_issuing_ = at_once(changes, costs_.threads.issuing);
  }

  // A task that was never dispatched on its own takes what is usual: of the host's, or of device tasks.
  void measure_dispatch() {
    std::vector<int64_t> all[2];
    for (const TaskId task : dispatch_.ids()) {
      auto& alike = all[plan_.on_host(task)];
      alike.insert(alike.end(), dispatch_[task].begin(), dispatch_[task].end());
    }
    const int64_t usual[2] = {std::max<int64_t>(0, median(all[0])), std::max<int64_t>(0, median(all[1]))};
    for (const TaskId task : dispatch_.ids()) {
      if (dispatch_[task].empty()) dispatch_[task] = {usual[plan_.on_host(task)]};
      costs_.tasks[task].dispatch = std::move(dispatch_[task]);
    }
  }

  // Instances of a wide task may end out of order, and count once those before them have ended.
  int64_t satisfied_at(const Edge& edge, int64_t instance) const {
    if (edge.needs == Edge::Needs::Done) {
      int64_t ended = -1;
      const int64_t width = plan_.tasks[edge.from].width;
      for (int64_t i = std::max<int64_t>(0, instance - width + 1); i <= instance; ++i) {
        const TaskSpan* span = index_.find(edge.from, i);
        if (span != nullptr) ended = std::max(ended, span->ended);
      }
      return ended;
    }
    const TaskSpan* span = instance < 0 ? nullptr : index_.find(edge.from, instance);
    if (span == nullptr) return -1;
    const auto found = issue_ends_.find({edge.from, instance});
    return found == issue_ends_.end() ? span->issued : found->second;
  }

  void measure_contention() {
    for (int32_t device = 0; device < int32_t(plan_.devices.size()); ++device) {
      costs_.contention.push_back(contention_on(device, trace_, steady_));
    }
  }

  void measure_nodes() {
    costs_.launches = trace_.launches;
    Table<TaskId, std::vector<NodeShare>> shares = node_shares(trace_);
    for (const TaskId task : shares.ids()) costs_.tasks[task].nodes = std::move(shares[task]);
  }

  const TraceFile& trace_;
  const Plan& plan_;
  const SteadyState& steady_;
  SpanIndex index_;
  Table<TaskId, std::vector<const Edge*>> into_;
  Table<TaskId, std::vector<int64_t>> dispatch_;
  std::map<std::pair<TaskId, int64_t>, int64_t> issue_ends_;
  Intervals all_issuing_;
  Costs costs_;
};

}  // namespace

Costs measure_costs(const TraceFile& trace, const SteadyState& steady) {
  return CostMeasurement(trace, steady).run();
}

}  // namespace arbalest
