// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steady state of a run: its iterations without the first and last few, and how long one of them takes. One
// definition for what was measured and for what is simulated.

#include <cstdint>
#include <vector>

#include "executor/trace/trace_file.h"

namespace arbalest {

struct SteadyState {
  int64_t first = 0, last = -1;  // iterations of the base clock (clock 0); empty if there are too few
  int64_t begin = 0, end = 0;    // ns: iterations `first` and `last` ended
  double iteration_ns = 0;       // from end to end of iterations; 0: unknown

  bool holds(const Plan& plan, const TaskSpan& span) const {
    return plan.tasks[span.task].clock == 0 && span.instance >= first && span.instance <= last;
  }
};

// An iteration ends when the last of the base clock's tasks has run it. Iterations that some of the tasks have not run
// (in a trace that dropped spans, or ended early) do not count. `warm_up`: the share of iterations left out at each
// end.
SteadyState find_steady_state(const Plan& plan, const std::vector<TaskSpan>& spans, double warm_up);

}  // namespace arbalest
