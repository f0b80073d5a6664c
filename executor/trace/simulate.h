// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a plan in simulated time: what the executor would do if tasks took as long as they are said to take. The
// dependencies are counted by the executor's own engine (dependencies.h). Around it are models of
//  - host tasks: `threads.host` threads, first come, first served;
//  - issuing: `threads.issuing` threads; the first device task that an issue makes ready goes on on the same thread;
//  - device lanes: in-order queues. The head starts when the one before it has ended and every instance that it awaits
//    from another lane (an Issued edge) has. Lanes of a GPU run at the same time, at the durations given: how they
//    slow each other down is in the durations, except for what collectives take (Costs::collective_share). Lanes of a
//    CPU device take turns, as its one thread serves them;
//  - the host's news of an end: LaneCosts::notice later.
//
// Not modelled: that host tasks and the kernels of CPU devices share cores, and that copies share buses. Nor that a
// collective may have been recorded with the time that it waited for the last device.

#include <cstdint>
#include <vector>

#include "executor/trace/steady_state.h"
#include "executor/trace/trace_costs.h"

namespace arbalest {

struct SimulationOptions {
  int64_t iterations = 0;  // of clock 0; 0: the whole plan, slower clocks included
  double warm_up = 0.05;   // see find_steady_state
};

struct Simulation {
  std::vector<TaskSpan> spans;  // as a trace would hold them, by start
  SteadyState steady;           // iteration_ns: the time per iteration of clock 0
  Table<LaneId, double> busy;   // share of the steady state during which it ran a task
};

// `plan` is live (verify). Throws std::logic_error if `costs` is not made for it.
Simulation simulate(const Plan& plan, const Costs& costs, const SimulationOptions& options = {});

}  // namespace arbalest
