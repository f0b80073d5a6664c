#pragma once
// How learners on one device slow each other down.
//
// Model: while n other compute lanes of the device are busy, a task goes on at 1 / (1 + c·n) of the speed that it has
// alone. c = 0: learners do not notice each other; c = 1: the device's throughput is shared, so that another learner
// brings nothing.
//
// c is fitted to the steady state of a trace: it is the one with which all instances of a task did most nearly the same
// work, whatever they overlapped with. Where all overlapped alike, the trace cannot tell, and c is taken as 1: what a
// learner fewer saves is then told at its most.
//
// Limits: one number for all kernels, though small ones share a device better than large ones; nothing for copies,
// collectives, caches or a clock frequency that falls under load; c is never over 1; and lanes of a CPU device, which
// take turns on one thread, have nothing to tell and nothing to share.

#include <cstdint>
#include <map>

#include "executor/steady_state.h"
#include "executor/trace_file.h"

namespace arbalest {

struct Contention {
  double slowdown = 1;             // c
  bool fitted = false;             // otherwise assumed
  std::map<TaskId, double> alone;  // by compute task: how long it would take alone ÷ how long it took

  // How much longer a task runs when `share` of the others that ran beside it are left.
  double scale(TaskId task, double share) const {
    const auto found = alone.find(task);
    return found == alone.end() ? 1 : found->second + share * (1 - found->second);
  }
};

Contention fit_contention(const TraceFile& trace, const SteadyState& steady, int32_t device);

}  // namespace arbalest
