// SPDX-License-Identifier: Apache-2.0
#pragma once
// Decides which task instances may run now: the executor's only hot loop.
//
// Every task counts how many of its instances have been fired, issued and done. An instance (v, n) is ready once each
// in-edge sees n < count of u + distance. The thread that raises a count checks the tasks that depend on it, and claims
// ready instances by moving v's `fired` from n to n + 1. So one completion costs one exchange and one compare-and-swap,
// however many edges there are. The tokens of an edge are the difference of two counts: nothing has to be re-armed, and
// nothing can overflow. An edge between clocks has a count of its own, in ticks of v, which moves when a group of ticks
// ends.
//
// No instance is missed, because counts are raised and read with sequential consistency. If two threads raise the last
// two counts that (v, n) needs, at least one of them sees both; if both do, the compare-and-swap lets only one fire.
// The thread that fires n checks n + 1 itself. Everything that an instance wrote before done() is visible to the
// instances that its completion makes ready.
//
// A plan's edges bound what runs. Besides them a task's own order holds, whether or not the plan spells it out. A
// device task is issued in order, one instance at a time, and a host task has at most `width` instances at once.
//
// Nothing is allocated and nothing locked after construction, except when a run ends or rests.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

class Dependencies {
 public:
  // The next instance of a task that does not run, and the edges that hold it up: for the stall report.
  struct Waiting {
    struct Lack {
      EdgeId edge = kNone;
      int64_t needs = 0;  // instance of the edge's `from`
    };
    TaskId task = kNone;
    int64_t instance = 0;     // the next to be fired
    int64_t running = 0;      // fired, not done
    std::vector<Lack> lacks;  // empty: it waits for its own running instances
  };

  struct Running {
    TaskId task = kNone;
    int64_t instance = 0;
  };

  // `plan` has been verified and outlives this object. Instances that lie before the position `from` count as done.
  explicit Dependencies(const Plan& plan, const PlanPosition& from = {});

  // Each of the following calls ready(TaskId, int64_t instance) once for each instance that became ready, in the order
  // in which they were found. It returns true if no instance is left that was fired and is not done: the run has ended.
  // ready() may call any of them.
  template <class Ready>
  bool start(Ready&& ready);

  // A device task's instance is in its queue. Once for each instance of device tasks, in order; never for host tasks.
  template <class Ready>
  bool issued(TaskId task, int64_t instance, Ready&& ready);

  // An instance has ended. Once for each instance; those of a device task in order, one call after the other.
  template <class Ready>
  bool done(TaskId task, int64_t instance, Ready&& ready);

  // Ends the run after a whole number of iterations. From now on all tasks of clock 0 run the same number of instances.
  // Coarse clocks run their complete groups and the instances that clock 0 needs of them; the same holds for the clocks
  // under them. Instances of other clocks that have been fired still end, but their successors do not run.
  template <class Ready>
  bool stop(Ready&& ready);

  // Brings the plan to rest between two iterations, as soon as possible. A validation that is under way stops too; if
  // the plan goes on from position() elsewhere, it begins again there. start() goes on from the rest.
  template <class Ready>
  bool pause(Ready&& ready);

  // As pause(), for a plan of which other processes run other parts. hold() lets nothing fire any more, and returns the
  // iterations that clock 0 cannot but run. pause_at() comes to rest after at least as many, once it is known what the
  // others cannot but run; a validation that they include ends first. Nothing is at rest in between, even if idle.
  int64_t hold();
  template <class Ready>
  bool pause_at(int64_t iterations, Ready&& ready);

  // Only at rest, before start(): clock 0 runs `iterations` ticks in all, and other clocks what is complete by then,
  // except for a validation that only begins there. From clock 0's number of ticks on, everything runs to its end.
  void rest_at(int64_t iterations);
  bool at_end() const;   // every task has run all its ticks
  bool trained() const;  // the tasks of clock 0 have run as far as they may; others may be under way

  // Only at rest: where the plan stands. Throws std::logic_error if that is no state to go on from.
  PlanPosition position() const;
  // The instances of each task that lie before `position`.
  Table<TaskId, int64_t> instances_before(const PlanPosition& position) const;

  // Nothing fires any more; calls under way on other threads may still report instances.
  void cancel();

  // Instances of a task that have ended: the first so many.
  int64_t ended(TaskId task) const { return states_[task].counts[int(Edge::Needs::Done)].load(); }
  bool idle() const { return outstanding_.load(std::memory_order_acquire) == 0; }
  bool complete() const;               // every task has run all its ticks, or those that stop() left it
  int64_t limit(ClockId clock) const;  // ticks of the clock that are to run: the most of its tasks
  std::vector<Waiting> describe_waiting() const;
  // The oldest running instance of each task that has one. Any thread may call it at any time; what is running may have
  // ended meanwhile.
  std::vector<Running> running() const;

 private:
  static constexpr int64_t kLine = 64;  // bytes of a cache line

  struct InEdge {
    const std::atomic<int64_t>* count = nullptr;
    int64_t distance = 0;
  };

  // Allowed instances of a task on account of an edge between clocks.
  struct Crossing {
    std::atomic<int64_t> allowed{0};
    std::atomic<int64_t> changes_at{0};  // below this count of u, `allowed` stays
    EdgeId edge = kNone;
    TaskId to = kNone;
  };

  struct Range {
    uint32_t begin = 0, end = 0;
  };

  struct alignas(kLine) State {
    std::atomic<int64_t> fired{0};
    std::atomic<int64_t> counts[2] = {0, 0};  // issued, done: by Edge::Needs
    std::atomic<int64_t> limit{0};            // ticks to run
    std::atomic<uint32_t> ended{0};  // width > 1: instances that ended ahead of earlier ones, by instance mod 32
    std::atomic<uint32_t> hint{0};   // the in-edge that was last found lacking
    Range in;                        // into in_edges_
    uint8_t width = 1;
    uint8_t own = 1;      // the count that the width bounds: issued for a device task, done for a host task
    uint8_t endings = 1;  // calls that each instance takes: issued() and done(), or done()
  };

  // The tasks to look at when a count is raised, and the crossings to advance.
  struct Out {
    Range tasks[2];      // into targets_, by Edge::Needs
    Range crossings[2];  // into crossings_
  };

  // Holds one of outstanding_ while a call runs and hands it to the last instance that it fires, so that a call with
  // one successor leaves the common counter alone.
  template <class Ready>
  class Firing {
   public:
    Firing(Dependencies& owner, Ready& ready) : owner_(owner), ready_(ready) {}

    void fire(TaskId task, int64_t instance) {
      const int64_t endings = owner_.states_[task].endings;
      if (task_ == kNone) {
        if (endings > 1) owner_.outstanding_.fetch_add(endings - 1, std::memory_order_relaxed);
      } else {
        owner_.outstanding_.fetch_add(endings, std::memory_order_relaxed);
        ready_(task_, instance_);
      }
      task_ = task;
      instance_ = instance;
    }

    bool finish() {
      if (task_ == kNone) return owner_.outstanding_.fetch_sub(1, std::memory_order_acq_rel) == 1;
      ready_(task_, instance_);
      return false;
    }

   private:
    Dependencies& owner_;
    Ready& ready_;
    TaskId task_ = kNone;
    int64_t instance_ = 0;
  };

  bool lacks_edge(State& state, int64_t instance) const;
  template <class Ready>
  void try_fire(TaskId task, Firing<Ready>& firing);
  template <class Ready>
  void release(TaskId task, Edge::Needs which, int64_t count, Firing<Ready>& firing);
  void advance(Crossing& crossing, int64_t count);
  int64_t raise_in_order(State& state, int64_t instance);

  void lay_out_edges();
  Table<EdgeId, char> redundant_edges() const;
  bool restrict_to_iterations(bool pauses);
  int64_t take_limits();
  bool put_limits(int64_t iterations);
  int64_t validations_ended() const;
  int64_t validations_copied(int64_t iterations) const;
  Table<TaskId, int64_t> limits_for(int64_t iterations, int64_t validations) const;

  const Plan& plan_;
  Table<TaskId, State> states_;
  Table<TaskId, Out> out_;
  std::vector<InEdge> in_edges_;
  std::vector<TaskId> targets_;
  std::unique_ptr<Crossing[]> crossings_;
  alignas(kLine) std::atomic<int64_t> outstanding_{0};  // endings of fired instances to come, and calls under way
  alignas(kLine) std::mutex ending_;                    // stop() and cancel()
  std::atomic<bool> cancelled_{false};
  Table<TaskId, int64_t> held_;  // the limits that take_limits() took
};

inline bool Dependencies::lacks_edge(State& state, int64_t instance) const {
  const uint32_t begin = state.in.begin, end = state.in.end;
  if (begin == end) return false;
  const auto lacking = [&](uint32_t k) { return instance >= in_edges_[k].count->load() + in_edges_[k].distance; };
  const uint32_t hint = state.hint.load(std::memory_order_relaxed);
  if (lacking(hint)) return true;
  for (uint32_t k = begin; k < end; ++k) {
    if (!lacking(k)) continue;
    state.hint.store(k, std::memory_order_relaxed);
    return true;
  }
  return false;
}

template <class Ready>
void Dependencies::try_fire(TaskId task, Firing<Ready>& firing) {
  State& state = states_[task];
  int64_t next = state.fired.load();
  // The limit is read after `next`: restrict_to_iterations() stands on that.
  while (next < state.limit.load() && next - state.counts[state.own].load() < state.width && !lacks_edge(state, next)) {
    if (!state.fired.compare_exchange_strong(next, next + 1)) continue;
    firing.fire(task, next);
    ++next;
  }
}

template <class Ready>
void Dependencies::release(TaskId task, Edge::Needs which, int64_t count, Firing<Ready>& firing) {
  const Out& out = out_[task];
  const Range crossings = out.crossings[int(which)];
  for (uint32_t k = crossings.begin; k < crossings.end; ++k) {
    Crossing& crossing = crossings_[k];
    if (count < crossing.changes_at.load(std::memory_order_relaxed)) continue;
    advance(crossing, count);
    try_fire(crossing.to, firing);
  }
  const Range targets = out.tasks[int(which)];
  for (uint32_t k = targets.begin; k < targets.end; ++k) try_fire(targets_[k], firing);
}

template <class Ready>
bool Dependencies::start(Ready&& ready) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  Firing<Ready> firing(*this, ready);
  for (const TaskId task : plan_.tasks.ids()) try_fire(task, firing);
  return firing.finish();
}

template <class Ready>
bool Dependencies::issued(TaskId task, int64_t instance, Ready&& ready) {
  Firing<Ready> firing(*this, ready);
  states_[task].counts[int(Edge::Needs::Issued)].exchange(instance + 1);
  release(task, Edge::Needs::Issued, instance + 1, firing);
  return firing.finish();
}

template <class Ready>
bool Dependencies::done(TaskId task, int64_t instance, Ready&& ready) {
  Firing<Ready> firing(*this, ready);
  State& state = states_[task];
  int64_t count = instance + 1;
  if (state.width == 1) {
    state.counts[int(Edge::Needs::Done)].exchange(count);
  } else {
    count = raise_in_order(state, instance);
  }
  if (count > 0) release(task, Edge::Needs::Done, count, firing);
  return firing.finish();
}

template <class Ready>
bool Dependencies::stop(Ready&& ready) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  Firing<Ready> firing(*this, ready);
  if (restrict_to_iterations(false)) {
    for (const TaskId task : plan_.tasks.ids()) try_fire(task, firing);
  }
  return firing.finish();
}

template <class Ready>
bool Dependencies::pause_at(int64_t iterations, Ready&& ready) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  Firing<Ready> firing(*this, ready);
  if (put_limits(iterations)) {
    for (const TaskId task : plan_.tasks.ids()) try_fire(task, firing);
  }
  return firing.finish();
}

template <class Ready>
bool Dependencies::pause(Ready&& ready) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  Firing<Ready> firing(*this, ready);
  if (restrict_to_iterations(true)) {
    for (const TaskId task : plan_.tasks.ids()) try_fire(task, firing);
  }
  return firing.finish();
}

}  // namespace arbalest
