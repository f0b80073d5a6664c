#pragma once
// What a graph asks for, as the graphs that a plan repeats: one training step, and one validation batch.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/passes/passes.h"

namespace arbalest {

struct ProgramOptions {
  bool bf16 = false;
  bool averaging = false;   // updates correct towards an average of all learners (Strategy::Kind::Sma)
  int64_t recalibrate = 0;  // batches to average the batch norms' statistics over instead of training; 0: trains
  // Called after each pass with its name and the training graph; for `arbalest plan --after PASS`.
  std::function<void(std::string_view pass, const Graph&)> after;
};

// One graph that the plan repeats, with the facts of its Prefetch node.
struct Loop {
  Graph graph;
  ArenaValues arenas;
  std::string source, split;
  int64_t batch = 0;
  int64_t depth = 0;  // batches read ahead of each learner
  ValueId image = kNone, label = kNone;
  std::vector<std::string> metrics;  // in the tally's order
};

struct Program {
  Loop training;
  std::optional<Loop> validation;
  Node train;                       // learning rate, schedule, epochs
  std::optional<Node> synchronize;  // how learners agree
  int64_t accumulate = 1;           // batches of an update
  int64_t validate_every = 1;       // epochs
  // The weights stay, and this many batches make one update of the batch norms' statistics; 0: training.
  int64_t recalibrate = 0;
};

// Runs the passes over a verified graph. Throws GraphError where the graph has not exactly one Prefetch and one Train,
// or more than one Synchronize or Validate.
Program make_program(Graph graph, const ProgramOptions& options);

// The names of the passes, in order.
const std::vector<std::string>& pass_names();

}  // namespace arbalest
