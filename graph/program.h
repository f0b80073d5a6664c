#pragma once
// What a graph asks for, as the graphs that a plan repeats: one training step, one validation batch.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/passes/passes.h"

namespace arbalest {

struct ProgramOptions {
  bool bf16 = false;
  bool averaging = false;  // updates correct towards an average of all learners (Strategy::Kind::Sma)
  int64_t validators = 1;  // devices that share validation's work
  // Called after each pass with its name and the training graph; for `arbalest plan --after PASS`.
  std::function<void(std::string_view pass, const Graph&)> after;
};

// One graph that the plan repeats, with the facts of its Prefetch node.
struct Loop {
  Graph graph;
  ArenaValues arenas;
  int64_t batch = 0;
  int64_t depth = 0;  // batches read ahead of each learner
  ValueId image = kNone, label = kNone;
  std::vector<std::string> metrics;  // in the tally's order
};

struct Program {
  Loop training;
  std::optional<Loop> validation;
  // Before a validation: each of so many training batches, on every validator, adds to averages of what batch norms
  // see.
  std::optional<Loop> recalibration;
  int64_t recalibration_batches = 0;
  Node train;                  // learning rate, schedule, epochs
  int64_t accumulate = 1;      // batches of an update
  int64_t validate_every = 1;  // epochs
};

// Runs the passes over a verified graph. Throws GraphError where the graph has not exactly one Prefetch and one Train,
// or more than one Synchronize or Validate.
Program make_program(Graph graph, const ProgramOptions& options);

// The names of the passes, in order.
const std::vector<std::string>& pass_names();

}  // namespace arbalest
