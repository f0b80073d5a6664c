// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>
#include <stdexcept>
#include <tuple>

#include "executor/plan/dependencies.h"
#include "executor/trace/trace_intervals.h"

namespace arbalest {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

using SpanId = int32_t;

class Simulator {
 public:
  Simulator(const Plan& plan, const Costs& costs, const SimulationOptions& options)
      : plan_(plan),
        costs_(costs),
        dependencies_(plan),
        lanes_(plan.lanes.size()),
        tasks_(plan.tasks.size()),
        collectives_(plan.devices.size()) {
    if (costs.tasks.size() != plan.tasks.size() || costs.lanes.size() != plan.lanes.size()) {
      throw std::logic_error("the costs belong to another plan");
    }
    host_.idle = std::max(1, costs.threads.host);
    issuing_.idle = std::max(1, costs.threads.issuing);
    iterations_ = options.iterations > 0 ? std::min(options.iterations, plan.clocks[0].ticks) : kNever;
    for (const Task& task : plan.tasks) to_run_ += task.clock == 0 && iterations_ < kNever ? iterations_ : 0;
    make_servers();
    find_awaited();
  }

  std::vector<TaskSpan> run() {
    dependencies_.start([this](TaskId task, int64_t instance) { dispatch(task, instance); });
    while (!events_.empty() && (iterations_ == kNever || to_run_ > 0)) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      handle(event);
    }
    std::erase_if(spans_, [](const TaskSpan& span) { return span.ended < 0; });
    std::stable_sort(spans_.begin(), spans_.end(),
                     [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
    return std::move(spans_);
  }

 private:
  enum class Happens : uint8_t {
    HostTaskArrives,
    HostTaskEnds,
    IssueArrives,
    IssueEnds,
    DeviceTaskEnds,
    Noticed,
    Look
  };

  struct Event {
    int64_t time = 0, number = 0;  // events of the same time happen in the order in which they were scheduled
    Happens what = Happens::Look;
    int32_t whose = 0;  // index of the span; for Look, of the server
    bool operator>(const Event& other) const { return std::tie(time, number) > std::tie(other.time, other.number); }
  };

  // Threads that take what waits for them in order.
  struct Pool {
    int idle = 1;
    std::deque<SpanId> waiting;
  };

  struct Queued {
    SpanId span = kNone;
    int64_t from = 0;  // it may start
  };

  struct LaneState {
    std::deque<Queued> queue;
    int32_t server = kNone;
  };

  // Runs one task at a time: from a lane of its own, or from the lanes of a CPU device in turn.
  struct Server {
    std::vector<LaneId> lanes;
    size_t next = 0;         // the lane that is checked first
    int64_t free_from = -1;  // −1: it has not run anything
    // The span that runs: ns of work that it had left at `since`, and when it ends at the present rate.
    SpanId span = kNone;
    double left = 0;
    int64_t since = 0, ends = 0;
  };

  struct TaskState {
    std::vector<int64_t> ends;        // of a device task, by instance
    std::vector<const Edge*> awaits;  // Issued edges from other lanes
    std::vector<int32_t> awaited_by;  // servers whose tasks await it
  };

  void make_servers() {
    std::vector<int32_t> of_device(plan_.devices.size(), kNone);
    for (const LaneId lane : plan_.lanes.ids()) {
      const Lane& known = plan_.lanes[lane];
      if (known.kind == Lane::Kind::Host) continue;
      const bool in_turn = known.device != kNone && plan_.devices[size_t(known.device)].kind == PlanDevice::Kind::Cpu;
      int32_t server = in_turn ? of_device[size_t(known.device)] : kNone;
      if (server == kNone) {
        server = int32_t(servers_.size());
        servers_.emplace_back();
        if (in_turn) of_device[size_t(known.device)] = server;
      }
      servers_[size_t(server)].lanes.push_back(lane);
      lanes_[lane].server = server;
    }
  }

  void find_awaited() {
    for (const Edge& edge : plan_.edges) {
      if (edge.needs != Edge::Needs::Issued || lane_of(edge.from) == lane_of(edge.to)) continue;
      tasks_[edge.to].awaits.push_back(&edge);
      const int32_t server = lanes_[lane_of(edge.to)].server;
      auto& servers = tasks_[edge.from].awaited_by;
      if (std::find(servers.begin(), servers.end(), server) == servers.end()) servers.push_back(server);
    }
  }

  LaneId lane_of(TaskId task) const { return plan_.tasks[task].lane; }
  LaneId lane_of_span(SpanId span) const { return lane_of(spans_[size_t(span)].task); }
  const LaneCosts& lane_costs(SpanId span) const { return costs_.lanes[lane_of_span(span)]; }

  void foresee(int64_t delay, Happens what, int32_t whose) { events_.push({now_ + delay, number_++, what, whose}); }

  void handle(const Event& event) {
    switch (event.what) {
      case Happens::HostTaskArrives: return arrive(host_, event.whose);
      case Happens::HostTaskEnds: end(event.whose); return leave(host_);
      case Happens::IssueArrives: return arrive(issuing_, event.whose);
      case Happens::IssueEnds: return end_issue(event.whose);
      case Happens::DeviceTaskEnds: return end_on_device(event.whose);
      case Happens::Noticed: {
        const TaskSpan span = spans_[size_t(event.whose)];
        dependencies_.done(span.task, span.instance, [this](TaskId task, int64_t i) { dispatch(task, i); });
        return;
      }
      case Happens::Look: return look(event.whose);
    }
  }

  SpanId add_span(TaskId task, int64_t instance) {
    spans_.push_back({task, instance, now_, -1, -1, -1});
    return SpanId(spans_.size() - 1);
  }

  void dispatch(TaskId task, int64_t instance) {
    const SpanId span = add_span(task, instance);
    foresee(costs_.tasks[task].dispatch.of(instance),
            plan_.on_host(task) ? Happens::HostTaskArrives : Happens::IssueArrives, span);
  }

  void arrive(Pool& pool, SpanId span) {
    if (pool.idle == 0) return pool.waiting.push_back(span);
    --pool.idle;
    work_on(pool, span);
  }

  void leave(Pool& pool) {
    if (pool.waiting.empty()) {
      ++pool.idle;
      return;
    }
    const SpanId span = pool.waiting.front();
    pool.waiting.pop_front();
    work_on(pool, span);
  }

  void work_on(Pool& pool, SpanId span) { &pool == &host_ ? run_host(span) : issue(span); }

  void run_host(SpanId id) {
    TaskSpan& span = spans_[size_t(id)];
    span.issued = span.started = now_;
    foresee(duration(span), Happens::HostTaskEnds, id);
  }

  int64_t duration(const TaskSpan& span) const { return costs_.tasks[span.task].duration.of(span.instance); }

  void issue(SpanId id) {
    TaskSpan& span = spans_[size_t(id)];
    span.issued = now_;
    LaneState& lane = lanes_[lane_of_span(id)];
    lane.queue.push_back({id, now_ + lane_costs(id).after_issue});
    foresee(lane_costs(id).after_issue, Happens::Look, lane.server);
    foresee(costs_.tasks[span.task].issuing, Happens::IssueEnds, id);
  }

  void end_issue(SpanId id) {
    const TaskSpan span = spans_[size_t(id)];
    TaskId next = kNone;
    int64_t next_instance = 0;
    dependencies_.issued(span.task, span.instance, [&](TaskId task, int64_t instance) {
      if (next == kNone && !plan_.on_host(task)) {
        next = task;
        next_instance = instance;
      } else {
        dispatch(task, instance);
      }
    });
    next == kNone ? leave(issuing_) : issue(add_span(next, next_instance));
  }

  // The time until which other tasks held the head of a lane back: −1 if none did, kNever while it still waits for one.
  int64_t held_until(const Server& server, const Queued& head) const {
    const TaskSpan& span = spans_[size_t(head.span)];
    int64_t held = server.free_from;
    for (const Edge* edge : tasks_[span.task].awaits) {
      const int64_t needed = needed_instance(plan_, *edge, span.instance);
      const std::vector<int64_t>& ends = tasks_[edge->from].ends;
      if (needed >= int64_t(ends.size())) return kNever;
      if (needed >= 0) held = std::max(held, ends[size_t(needed)]);
    }
    return held;
  }

  // Starts what may start on a server: of several lanes, the first in turn. Called whenever that may have changed.
  void look(int32_t id) {
    Server& server = servers_[size_t(id)];
    if (server.span != kNone) return;
    for (size_t k = 0; k < server.lanes.size(); ++k) {
      const size_t place = (server.next + k) % server.lanes.size();
      auto& queue = lanes_[server.lanes[place]].queue;
      if (queue.empty() || queue.front().from > now_) continue;
      const int64_t held = held_until(server, queue.front());
      if (held == kNever) continue;
      const SpanId span = queue.front().span;
      TaskSpan& head = spans_[size_t(span)];
      queue.pop_front();
      server.next = (place + 1) % server.lanes.size();
      head.started = held < 0 ? now_ : std::max(now_, held + lane_costs(span).after_queue);
      server.span = span;
      server.left = double(duration(head));
      server.since = head.started;
      foresee_end(server);
      return count_collective(lane_of_span(span), 1);
    }
  }

  // The work that is done in a ns on a server.
  double rate(const Server& server) const {
    const Lane& lane = plan_.lanes[server.lanes.front()];
    return lane.kind == Lane::Kind::Compute && collectives_[size_t(lane.device)] > 0 ? 1 - costs_.collective_share : 1;
  }

  void foresee_end(Server& server) {
    server.ends = server.since + std::llround(server.left / rate(server));
    foresee(server.ends - now_, Happens::DeviceTaskEnds, server.span);
  }

  // Counts a task that begins or ends, if it is a collective: what its GPUs compute goes on at another rate.
  void count_collective(LaneId id, int change) {
    const Lane& lane = plan_.lanes[id];
    if (lane.kind != Lane::Kind::Collectives || costs_.collective_share <= 0) return;
    for (int32_t device = 0; device < int32_t(plan_.devices.size()); ++device) {
      if (plan_.devices[size_t(device)].kind != PlanDevice::Kind::Cuda) continue;
      const bool spanned = std::find(lane.spans.begin(), lane.spans.end(), device) != lane.spans.end();
      if (spanned || lane.spans.empty()) change_rate(device, change);
    }
  }

  void change_rate(int32_t device, int change) {
    for (Server& server : servers_) {
      if (server.span == kNone || plan_.lanes[server.lanes.front()].device != device) continue;
      const int64_t worked = std::max<int64_t>(0, now_ - server.since);
      server.left = std::max(0.0, server.left - double(worked) * rate(server));
      server.since += worked;
    }
    collectives_[size_t(device)] += change;
    for (Server& server : servers_) {
      if (server.span != kNone && plan_.lanes[server.lanes.front()].device == device) foresee_end(server);
    }
  }

  void end(SpanId id) {
    TaskSpan& span = spans_[size_t(id)];
    span.ended = now_;
    if (plan_.tasks[span.task].clock == 0 && span.instance < iterations_) --to_run_;
    foresee(lane_costs(id).notice, Happens::Noticed, id);
  }

  void end_on_device(SpanId id) {
    const TaskId task = spans_[size_t(id)].task;
    const int32_t own = lanes_[lane_of(task)].server;
    Server& server = servers_[size_t(own)];
    if (server.span != id || server.ends != now_) return;  // foreseen at a rate that has changed since
    end(id);
    tasks_[task].ends.push_back(now_);
    server.span = kNone;
    server.free_from = now_;
    count_collective(lane_of(task), -1);
    look(own);
    for (const int32_t server : tasks_[task].awaited_by) {
      if (server != own) look(server);
    }
  }

  const Plan& plan_;
  const Costs& costs_;
  Dependencies dependencies_;
  Pool host_, issuing_;
  Table<LaneId, LaneState> lanes_;
  std::vector<Server> servers_;
  Table<TaskId, TaskState> tasks_;
  std::vector<int> collectives_;  // by device: that run on it, if it is a GPU
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<TaskSpan> spans_;
  int64_t now_ = 0, number_ = 0;
  int64_t iterations_ = 0;
  int64_t to_run_ = 0;  // instances of clock 0 up to iterations_
};

}  // namespace

Simulation simulate(const Plan& plan, const Costs& costs, const SimulationOptions& options) {
  Simulation simulation;
  simulation.spans = Simulator(plan, costs, options).run();
  simulation.steady = find_steady_state(plan, simulation.spans, options.warm_up);
  const Intervals window = {{simulation.steady.begin, simulation.steady.end}};
  for (const Intervals& lane : busy_times(plan, simulation.spans)) {
    const int64_t whole = length(window);
    simulation.busy.push_back(whole > 0 ? double(common(lane, window)) / double(whole) : 0);
  }
  return simulation;
}

}  // namespace arbalest
