// SPDX-License-Identifier: Apache-2.0
#pragma once
// The limit of a run, in a sentence and three figures: the same words in the terminal and in the viewer.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/trace/trace_summary.h"

namespace arbalest {

struct VerdictFigure {
  // The part of the report that shows the figure: a lane or a task of the plan, the reason why a lane is idle, or the
  // critical cycle.
  enum class Where : uint8_t { Lane, Task, Idle, Cycle };
  std::string value;  // "98 %"
  std::string text;   // "of averaging hidden behind compute"
  Where where = Where::Cycle;
  int32_t id = kNone;  // of the lane or task
};

struct Verdict {
  std::string sentence;            // "Bound by compute on cuda:0, …; input never late; averaging 98 % hidden."
  std::vector<std::string> notes;  // as notes_on() has them
  std::vector<VerdictFigure> figures;
};

// How the run ended, and where in it the trace begins, a sentence each. Empty if the trace does not know.
std::vector<std::string> notes_on(const TracedRun& run);

// `summary` is analyze(trace).
Verdict judge(const TraceFile& trace, const TraceSummary& summary);

}  // namespace arbalest
