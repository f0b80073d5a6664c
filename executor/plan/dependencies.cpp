// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/dependencies.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "executor/plan/clocks.h"

namespace arbalest {
namespace {

constexpr uint32_t kWindow = kWidest;                          // bits of State::ended
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();  // of the validations: none is held back

}  // namespace

Dependencies::Dependencies(const Plan& plan, const PlanPosition& from)
    : plan_(plan), states_(plan.tasks.size()), out_(plan.tasks.size()) {
  for (const TaskId task : plan_.tasks.ids()) {
    State& state = states_[task];
    const bool host = plan.on_host(task);
    state.limit = plan.clocks[plan.tasks[task].clock].ticks;
    state.width = uint8_t(host ? plan.tasks[task].width : 1);
    state.own = uint8_t(host ? Edge::Needs::Done : Edge::Needs::Issued);
    state.endings = host ? 1 : 2;
  }
  if (from.iterations > 0) {
    const Table<TaskId, int64_t> before = instances_before(from);
    for (const TaskId task : plan_.tasks.ids()) {
      State& state = states_[task];
      state.fired = before[task];
      for (std::atomic<int64_t>& count : state.counts) count = before[task];
    }
  }
  lay_out_edges();
}

// Edges that others imply. Some never hold anything back in this run. Others are parallel to a shorter one or to one
// way round another task, or lead to oneself and are covered by the width. A way round needs its first edge to wait for
// the same ending.
Table<EdgeId, char> Dependencies::redundant_edges() const {
  Table<EdgeId, char> redundant(plan_.edges.size(), 0);
  Table<TaskId, std::vector<EdgeId>> in_edges(plan_.tasks.size());
  for (const EdgeId id : plan_.edges.ids()) {
    const Edge& edge = plan_.edges[id];
    const State& state = states_[edge.to];
    const int64_t ticks = plan_.clocks[plan_.tasks[edge.to].clock].ticks;
    const bool by_width = edge.from == edge.to && edge.distance >= state.width && int(edge.needs) == state.own;
    redundant[id] = by_width || allowed_instances(plan_, edge, 0) >= ticks;
    if (edge.relation == kNone) in_edges[edge.to].push_back(id);
  }
  const auto covers = [](const Edge& first, const Edge& edge) {
    return first.from == edge.from && first.needs == edge.needs;
  };
  for (const EdgeId id : plan_.edges.ids()) {
    const Edge& edge = plan_.edges[id];
    if (redundant[id] || edge.relation != kNone || edge.from == edge.to) continue;
    for (EdgeId last_id : in_edges[edge.to]) {
      const Edge& last = plan_.edges[last_id];
      if (last_id == id || last.distance > edge.distance) continue;
      if (covers(last, edge) && (last.distance < edge.distance || last_id < id)) redundant[id] = 1;
      if (last.from == edge.to || last.from == edge.from) continue;
      for (EdgeId first_id : in_edges[last.from]) {
        const Edge& first = plan_.edges[first_id];
        if (covers(first, edge) && first.distance + last.distance <= edge.distance) redundant[id] = 1;
      }
    }
  }
  return redundant;
}

void Dependencies::lay_out_edges() {
  const Table<EdgeId, char> redundant = redundant_edges();
  Table<TaskId, std::vector<TaskId>> targets[2];
  Table<TaskId, std::vector<EdgeId>> crossings[2], in_edges(plan_.tasks.size());
  for (auto& of_needs : targets) of_needs.resize(plan_.tasks.size());
  for (auto& of_needs : crossings) of_needs.resize(plan_.tasks.size());
  uint32_t crossing_count = 0;
  for (const EdgeId id : plan_.edges.ids()) {
    if (redundant[id]) continue;
    const Edge& edge = plan_.edges[id];
    in_edges[edge.to].push_back(id);
    if (edge.relation == kNone) {
      targets[int(edge.needs)][edge.from].push_back(edge.to);
    } else {
      crossings[int(edge.needs)][edge.from].push_back(id);
      ++crossing_count;
    }
  }
  crossings_.reset(new Crossing[crossing_count]);
  Table<EdgeId, uint32_t> crossing_of(plan_.edges.size());
  uint32_t next_crossing = 0;
  for (const TaskId task : plan_.tasks.ids()) {
    targets[states_[task].own][task].push_back(task);  // last: what an ending feeds goes before a task's next instance
    for (int needs = 0; needs < 2; ++needs) {
      out_[task].tasks[needs].begin = uint32_t(targets_.size());
      const std::vector<TaskId>& all = targets[needs][task];
      for (auto at = all.begin(); at != all.end(); ++at) {
        if (std::find(all.begin(), at, *at) == at) targets_.push_back(*at);
      }
      out_[task].tasks[needs].end = uint32_t(targets_.size());
      out_[task].crossings[needs].begin = next_crossing;
      for (EdgeId id : crossings[needs][task]) {
        Crossing& crossing = crossings_[next_crossing];
        crossing.edge = id;
        crossing.to = plan_.edges[id].to;
        advance(crossing, states_[task].counts[needs].load());
        crossing_of[id] = next_crossing++;
      }
      out_[task].crossings[needs].end = next_crossing;
    }
  }
  for (const TaskId task : plan_.tasks.ids()) {
    states_[task].in.begin = uint32_t(in_edges_.size());
    for (EdgeId id : in_edges[task]) {
      const Edge& edge = plan_.edges[id];
      const bool crosses = edge.relation != kNone;
      in_edges_.push_back({crosses ? &crossings_[crossing_of[id]].allowed : &states_[edge.from].counts[int(edge.needs)],
                           crosses ? 0 : edge.distance});
    }
    states_[task].in.end = uint32_t(in_edges_.size());
    states_[task].hint = states_[task].in.begin;
  }
}

// Threads may come here with different counts; `allowed` only grows, and changes_at, read without order, is at worst
// too low.
void Dependencies::advance(Crossing& crossing, int64_t count) {
  const Edge& edge = plan_.edges[crossing.edge];
  const ClockRelation& relation = plan_.relations[edge.relation];
  const int64_t allowed = allowed_instances(plan_, edge, count);
  int64_t known = crossing.allowed.load();
  while (known < allowed && !crossing.allowed.compare_exchange_weak(known, allowed)) {
  }
  const bool from_fine = plan_.tasks[edge.from].clock == relation.fine;
  const int64_t changes_at = from_fine ? relation.last_of(allowed) + 1 - edge.distance : count + 1;
  crossing.changes_at.store(changes_at, std::memory_order_relaxed);
}

// Counts the instances that have ended without a gap. The thread that clears the bit of the first uncounted instance
// counts it, so one thread at a time does. A thread that sets its bit and finds an earlier one missing leaves its
// instance to the thread that counts the earlier one. Returns 0 if this call raised nothing.
int64_t Dependencies::raise_in_order(State& state, int64_t instance) {
  state.ended.fetch_or(1u << (uint32_t(instance) % kWindow));
  std::atomic<int64_t>& done = state.counts[int(Edge::Needs::Done)];
  int64_t raised = 0;
  for (;;) {
    const int64_t count = done.load();
    const uint32_t bit = 1u << (uint32_t(count) % kWindow);
    if (!(state.ended.load() & bit)) return raised;
    if (!(state.ended.fetch_and(~bit) & bit)) return raised;
    if (done.load() != count) {  // counted meanwhile: the bit belongs to instance count + 32, put it back
      state.ended.fetch_or(bit);
      continue;
    }
    done.store(count + 1);
    raised = count + 1;
  }
}

// Firing pauses while limits are chosen. A thread that read its limit before the pause read `fired` before that, so it
// fires at most the instance that stands there now. One more than the largest `fired` is a number that no task exceeds.
//
// When the plan pauses, a validation that has not ended stays where it stands. An exception is the copy of the weights
// that the next update writes over, which the iterations need. If they need the copy of the validation after it too, it
// has no batch left, and ends, so that at most one has to begin again.
bool Dependencies::restrict_to_iterations(bool pauses) {
  const std::lock_guard lock(ending_);
  if (cancelled_.load()) return false;
  const int64_t iterations = take_limits();
  const int64_t held = std::max(validations_ended(), validations_copied(iterations) - 1);
  const Table<TaskId, int64_t> limits = limits_for(iterations, pauses ? held : kAll);
  for (const TaskId task : plan_.tasks.ids()) {
    states_[task].limit.store(std::min(limits[task], held_[task]));
  }
  return true;
}

// Lets nothing fire, and returns the iterations that are left to run then.
int64_t Dependencies::take_limits() {
  held_.resize(plan_.tasks.size());
  for (const TaskId task : plan_.tasks.ids()) held_[task] = states_[task].limit.exchange(0);
  int64_t iterations = 0, most = 0;
  for (const TaskId task : plan_.tasks.ids()) {
    if (plan_.tasks[task].clock != 0) continue;
    iterations = std::max(iterations, states_[task].fired.load() + 1);
    most = std::max(most, held_[task]);
  }
  return std::min(iterations, most);
}

int64_t Dependencies::hold() {
  const std::lock_guard lock(ending_);
  return cancelled_.load() ? 0 : take_limits();
}

bool Dependencies::put_limits(int64_t iterations) {
  const std::lock_guard lock(ending_);
  if (cancelled_.load()) return false;
  const Table<TaskId, int64_t> limits = limits_for(iterations, kAll);
  for (const TaskId task : plan_.tasks.ids()) {
    states_[task].limit.store(std::min(limits[task], held_[task]));
  }
  return true;
}

int64_t Dependencies::validations_ended() const {
  const TaskId end = plan_.handles.validation_end;
  return end == kNone ? 0 : states_[end].counts[int(Edge::Needs::Done)].load();
}

// Validations whose copy of the weights so many iterations need.
int64_t Dependencies::validations_copied(int64_t iterations) const {
  const ClockRelation* by_validation = plan_.relation(plan_.handles.by_validation);
  return by_validation && iterations > 0 ? by_validation->coarse_of(iterations - 1) : 0;
}

void Dependencies::rest_at(int64_t iterations) {
  const std::lock_guard lock(ending_);
  if (cancelled_.load()) return;
  Table<TaskId, int64_t> limits;
  if (!plan_.clocks.empty() && iterations < plan_.clocks[0].ticks) {
    limits = limits_for(iterations, validations_copied(iterations));
  }
  for (const TaskId task : plan_.tasks.ids()) {
    const int64_t ticks = plan_.clocks[plan_.tasks[task].clock].ticks;
    states_[task].limit.store(limits.empty() ? ticks : limits[task]);
  }
}

bool Dependencies::at_end() const {
  for (const TaskId task : plan_.tasks.ids()) {
    const int64_t ticks = plan_.clocks[plan_.tasks[task].clock].ticks;
    if (states_[task].counts[int(Edge::Needs::Done)].load() < ticks) return false;
  }
  return true;
}

bool Dependencies::trained() const {
  for (const TaskId task : plan_.tasks.ids()) {
    const State& state = states_[task];
    const bool trains = plan_.tasks[task].clock == 0;
    if (trains && state.counts[int(Edge::Needs::Done)].load() < state.limit.load()) return false;
  }
  return true;
}

PlanPosition Dependencies::position() const {
  const PlanPosition position{limit(0), validations_ended()};
  const Table<TaskId, int64_t> before = instances_before(position);
  for (const TaskId task : plan_.tasks.ids()) {
    if (before[task] <= states_[task].counts[int(Edge::Needs::Done)].load()) continue;
    throw std::logic_error(plan_.tasks[task].name + " is past the position at which its plan rests");
  }
  return position;
}

Table<TaskId, int64_t> Dependencies::instances_before(const PlanPosition& position) const {
  return limits_for(position.iterations, position.validations);
}

// For each task, the number of instances to run so that clock 0 runs `iterations` and so many validations end; more if
// tasks need more.
Table<TaskId, int64_t> Dependencies::limits_for(int64_t iterations, int64_t validations) const {
  constexpr int64_t kUnknown = -1;
  const ClockRelation* by_validation = plan_.relation(plan_.handles.by_validation);
  Table<ClockId, int64_t> ticks(plan_.clocks.size(), kUnknown);
  if (!ticks.empty()) ticks[0] = iterations;
  for (size_t round = 0; round < plan_.clocks.size(); ++round) {
    for (const ClockRelation& relation : plan_.relations) {
      int64_t &fine = ticks[relation.fine], &coarse = ticks[relation.coarse];
      if (fine != kUnknown && coarse == kUnknown) {
        coarse = relation.coarse_of(fine);
        if (&relation == by_validation) coarse = std::min(coarse, validations);
      } else if (coarse != kUnknown && fine == kUnknown) {
        fine = coarse == 0 ? 0 : relation.last_of(coarse - 1) + 1;
      }
    }
  }
  Table<TaskId, int64_t> limits(plan_.tasks.size());
  for (const TaskId task : limits.ids()) {
    const ClockId clock = plan_.tasks[task].clock;
    limits[task] =
        ticks[clock] == kUnknown ? plan_.clocks[clock].ticks : std::min(ticks[clock], plan_.clocks[clock].ticks);
  }
  for (bool grows = true; grows;) {
    grows = false;
    for (const Edge& edge : plan_.edges) {
      if (limits[edge.to] == 0) continue;
      const int64_t needed = needed_instance(plan_, edge, limits[edge.to] - 1) + 1;
      if (needed <= limits[edge.from]) continue;
      if (plan_.tasks[edge.from].clock == 0) return limits_for(needed, validations);
      limits[edge.from] = needed;
      grows = true;
    }
  }
  return limits;
}

void Dependencies::cancel() {
  const std::lock_guard lock(ending_);
  cancelled_.store(true);
  for (const TaskId task : plan_.tasks.ids()) states_[task].limit.store(0);
}

bool Dependencies::complete() const {
  if (cancelled_.load() || !idle()) return false;
  for (const TaskId task : plan_.tasks.ids()) {
    if (states_[task].counts[int(Edge::Needs::Done)].load() < states_[task].limit.load()) return false;
  }
  return true;
}

int64_t Dependencies::limit(ClockId clock) const {
  int64_t most = 0;
  for (const TaskId task : plan_.tasks.ids()) {
    if (plan_.tasks[task].clock == clock) most = std::max(most, states_[task].limit.load());
  }
  return most;
}

std::vector<Dependencies::Waiting> Dependencies::describe_waiting() const {
  std::vector<Waiting> all;
  Table<TaskId, size_t> place(plan_.tasks.size(), std::numeric_limits<size_t>::max());
  for (const TaskId task : plan_.tasks.ids()) {
    const State& state = states_[task];
    const int64_t next = state.fired.load(), done = state.counts[int(Edge::Needs::Done)].load();
    if (done >= state.limit.load() && done == next) continue;
    place[task] = all.size();
    all.push_back({task, next, next - done, {}});
  }
  for (const EdgeId id : plan_.edges.ids()) {
    const Edge& edge = plan_.edges[id];
    if (place[edge.to] >= all.size()) continue;
    Waiting& waiting = all[place[edge.to]];
    if (waiting.instance >= states_[edge.to].limit.load()) continue;
    const int64_t needs = needed_instance(plan_, edge, waiting.instance);
    if (needs >= states_[edge.from].counts[int(edge.needs)].load()) waiting.lacks.push_back({id, needs});
  }
  return all;
}

std::vector<Dependencies::Running> Dependencies::running() const {
  std::vector<Running> all;
  for (const TaskId task : plan_.tasks.ids()) {
    const int64_t done = states_[task].counts[int(Edge::Needs::Done)].load();
    if (done < states_[task].fired.load()) all.push_back({task, done});
  }
  return all;
}

}  // namespace arbalest
