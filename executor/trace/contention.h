// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models how learners on one GPU slow each other down.
//
// After a traced run each compute task is timed once more by itself (TraceFile::alone). In the steady state it ran in
// parallel with the others and took longer. The difference is put down to the others, each of which adds the same. If a
// trace does not have those times, learners are assumed to share the GPU's throughput; then the predicted saving of
// fewer learners is an upper bound.
//
// Limits: nothing for copies, collectives or a clock frequency that falls under load. Lanes of a CPU device take turns
// on one thread and do not slow each other down.

#include <cstdint>
#include <map>

#include "executor/trace/steady_state.h"
#include "executor/trace/trace_file.h"

namespace arbalest {

struct Contention {
  bool measured = false;           // of all compute tasks; otherwise some are assumed
  std::map<TaskId, double> alone;  // by compute task: how long it takes alone ÷ how long it took; at most 1

  // How much longer a task runs when `share` of the others that ran at the same time are left.
  double scale(TaskId task, double share) const {
    const auto found = alone.find(task);
    return found == alone.end() ? 1 : found->second + share * (1 - found->second);
  }
};

Contention contention_on(int32_t device, const TraceFile& trace, const SteadyState& steady);

}  // namespace arbalest
