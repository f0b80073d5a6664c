// SPDX-License-Identifier: Apache-2.0
#pragma once
// The passes that make a program's loops of one graph: see the table in passes/pipeline.cpp.

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/program.h"

namespace arbalest {

// Facts of a program that passes need besides its loops. Ids are those of the training graph, and of the slices cut
// from it, until remove_dead.
struct ProgramNotes {
  std::optional<Node> validate;   // none: the graph is not validated
  int64_t recalibrate = 0;        // batches over all devices, as Validate says
  ValueId loss = kNone;           // Train's
  std::vector<ValueId> listed;    // metrics, as Validate lists them
  std::vector<ValueId> measured;  // by the validation loop
  std::vector<ValueId> reported;  // by the training loop
};

// A program of one loop, whose graph is the whole graph, with what Train and Validate say. Throws GraphError if the
// graph lacks Prefetch or Train, has two of what there is one of, or counts rows that are no samples.
Program read_rules(Graph graph, ProgramNotes& notes);

// Adds the validation loop if there is a Validate node, and drops Train, Synchronize and Validate from training's
// graph. Throws GraphError if a norm is over one value, or recalibration has no batch norm.
void cut_validation(Program& program, const ProgramOptions& options, ProgramNotes& notes);

// Adds the recalibration loop if Validate asks for one: training's forward pass, which averages statistics.
void add_recalibration(Program& program, const ProgramOptions& options, const ProgramNotes& notes);

// Sums and rows of what the loop measures.
void add_tallies(Loop& loop, const ProgramOptions& options, const ProgramNotes& notes);

// Prefetch and host nodes are the plan's business: their outputs become inputs of the graph.
void take_inputs(Loop& loop);

// remove_dead() for a loop, whose ids are updated along.
void keep_needed(Loop& loop);

}  // namespace arbalest
