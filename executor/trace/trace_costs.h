// SPDX-License-Identifier: Apache-2.0
#pragma once
// The costs of running a plan, measured from a trace: simulate() replays them.

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/trace/layer_times.h"
#include "executor/trace/steady_state.h"
#include "executor/trace/trace_file.h"

namespace arbalest {

// Times in ns that are replayed as they were recorded, instance after instance, rather than drawn at random or taken as
// a mean. So what slows several tasks at once (a busy host, a clock that drops) still does so at once. The rare long
// instance keeps its share, and the same trace gives the same prediction.
class Replay {
 public:
  Replay() = default;
  Replay(std::vector<int64_t> recorded) : recorded_(std::make_shared<std::vector<int64_t>>(std::move(recorded))) {}

  // Instance n takes what was recorded at n mod size; nothing if nothing was.
  int64_t of(int64_t instance) const {
    if (recorded_ == nullptr || recorded_->empty()) return 0;
    return (*recorded_)[size_t(instance + first_) % recorded_->size()];
  }
  int64_t size() const { return recorded_ == nullptr ? 0 : int64_t(recorded_->size()); }
  void begin_later(int64_t instances) { first_ += instances; }  // with what instance `instances` took until now
  void scale(double factor) {
    if (recorded_ == nullptr) return;
    std::vector<int64_t> scaled(recorded_->size());
    for (size_t i = 0; i < scaled.size(); ++i) scaled[i] = std::llround(double((*recorded_)[i]) * factor);
    recorded_ = std::make_shared<std::vector<int64_t>>(std::move(scaled));
  }

 private:
  int64_t first_ = 0;
  std::shared_ptr<const std::vector<int64_t>> recorded_;  // copies share it: many scenarios differ in few tasks
};

struct TaskCosts {
  Replay duration;
  Replay dispatch;               // from ready to issuing (a host task: to running), by a thread that was free
  int64_t issuing = 0;           // ns of an issuing thread for each instance, the median; device tasks
  std::vector<NodeShare> nodes;  // inside; empty if the trace knows none
};

// How learners on one GPU slow each other down.
//
// After a traced run each compute task is timed once more by itself (TraceFile::alone). In the steady state it ran in
// parallel with the others and took longer. The difference is put down to the others, each of which adds the same. If a
// trace does not have those times, learners are assumed to share the GPU's throughput; then the predicted saving of
// fewer learners is an upper bound.
//
// Limits: nothing for copies, collectives or a clock frequency that falls under load. Lanes of a CPU device take turns
// on one thread and do not slow each other down.
struct Contention {
  bool measured = false;           // of all compute tasks; otherwise some are assumed
  std::map<TaskId, double> alone;  // by compute task: how long it takes alone ÷ how long it took; at most 1

  // How much longer a task runs when `share` of the others that ran at the same time are left.
  double scale(TaskId task, double share) const {
    const auto found = alone.find(task);
    return found == alone.end() ? 1 : found->second + share * (1 - found->second);
  }
};

// Latencies in ns, medians.
struct LaneCosts {
  int64_t after_issue = 0;  // from the beginning of issuing to the start, if nothing else held it back
  int64_t after_queue = 0;  // from the end of what it waited for in its queue to the start
  int64_t notice = 0;       // from an end to what it makes ready
};

struct Costs {
  Table<TaskId, TaskCosts> tasks;
  Table<LaneId, LaneCosts> lanes;
  std::vector<Contention> contention;  // parallel to Plan::devices
  std::vector<std::string> launches;   // node names, by NodeShare::launch
  TraceThreads threads{1, 1};
  // The share of a GPU's progress in compute tasks that a collective takes away while it runs there. 0 for durations of
  // tasks that were measured next to the same collectives.
  double collective_share = 0;
};

// Measures in the steady state. For tasks of slower clocks it takes the instances that ran during the steady state, or
// all of them if none did.
Costs measure_costs(const TraceFile& trace, const SteadyState& steady);

}  // namespace arbalest
