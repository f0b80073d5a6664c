// SPDX-License-Identifier: Apache-2.0
#pragma once
// Predicts the effect of changes: edits a trace's plan and costs and simulates them again.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "executor/trace/link_model.h"
#include "executor/trace/trace_costs.h"
#include "executor/trace/trace_file.h"

namespace arbalest {

// A plan as a trace carries it (tasks, edges, lanes, clocks) with what running it costs.
struct Scenario {
  Plan plan;
  Costs costs;
};

// One change:
//   prefetch.depth=N   N pinned batches per reader, and as many fills at once as make_plan would allow
//   source*F           tasks that fill batches take F times as long
//   learners-N         N learners fewer on each device. Their tasks are gone, and the remaining ones run with less
//                      contention (trace_costs.h). Collectives and averaging keep their costs. Clocks stay the same:
//                      an epoch keeps its number of iterations
//   PATTERN*F          the layer of that name, forward and backward, takes F times as long. If there is no such layer,
//                      the change applies to tasks whose names contain PATTERN, or else to nodes inside of tasks
struct WhatIf {
  enum class Kind : uint8_t { Depth, Source, Learners, Tasks };
  Kind kind = Kind::Tasks;
  std::string text;     // the change as the user wrote it
  std::string pattern;  // Tasks: of layers and nodes as well
  double factor = 1;    // Source, Tasks
  int64_t count = 0;    // Depth, Learners
};

// The batches that may be made ahead: the slots that a copy frees; 0 if the step frees the only one. `edge`: one of
// Why::Reuse to a task that fills batches.
int64_t depth_of(const Plan& plan, const Edge& edge);

// Gives the task that the edge leads to so many slots, from 1 on, and as many instances at once as make_plan would.
void set_depth(Plan& plan, Edge& edge, int64_t depth);

// Nodes inside of tasks take `factor` times as long: those whose launch is `meant`. Whether there are any.
bool scale_nodes(Costs& costs, const std::vector<char>& meant, double factor);

// Throws GraphError that says what was found and what forms there are.
WhatIf parse_what_if(std::string_view text);

// Edits the scenario, which stays live. Throws GraphError if there is nothing that the change applies to.
void apply(const WhatIf& change, Scenario& scenario);

// Gives collectives the time that they take in a world of that size, whose devices take as long as those of the
// scenario. Throws GraphError if the scenario has no collective with a known number of bytes.
void set_world(Scenario& scenario, const WorldSize& size, const WorldLinks& links);

// A table for the terminal: time per iteration as measured, and as simulated in worlds of these sizes; and what is
// assumed. Throws GraphError as predict() and set_world() do.
std::string predict_worlds(const TraceFile& trace, const std::vector<WorldSize>& sizes, const WorldLinks& links);

// A table for the terminal: time per iteration as measured, as simulated, and after each change by itself. Throws
// GraphError if the trace has too few iterations.
std::string predict(const TraceFile& trace, const std::vector<WhatIf>& changes);

}  // namespace arbalest
