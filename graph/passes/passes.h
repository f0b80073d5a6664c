#pragma once
// The passes from a verified graph, as a file or the DSL gives it, to the graphs that a plan is made of. One file a pass;
// make_program() in graph/program.h calls them in order.

#include <array>
#include <string>

#include "graph/graph.h"

namespace arbalest {

// Layers that own parameters become operators with explicit parameters, until none is left.
void expand_layers(Graph& graph);

// BatchNormTraining → Relu and BatchNormTraining → Add → Relu become one node.
void fuse_batch_norm(Graph& graph);

// The slice that computes `metrics` with the given split and batch: data without randomness, batch norm on running statistics.
// `prefetch` is the node that reads the data.
Graph slice_validation(const Graph& graph, const std::vector<ValueId>& metrics, const std::string& split, int64_t batch);

// Sums `metrics` (scalars) weighted by valid samples into a State named "tally": double[1 + metrics], first Σ valid.
// Returns that state.
ValueId add_tally(Graph& graph, const std::vector<ValueId>& metrics);

// The flat values that parameters, gradients and optimiser state live in; kNone where there is none.
struct ArenaValues {
  ValueId weights = kNone;     // float[P]
  ValueId gradients = kNone;   // float[P]
  ValueId velocity = kNone;    // float[P]
  ValueId statistics = kNone;  // float[S]: running means, then the variances in the same order
  ValueId weights_lowered = kNone;  // bfloat16[P]: what bf16 kernels read
  ValueId average = kNone, averaged = kNone;  // float[P]: the model of all learners before and after its last averaging
  ValueId tally = kNone;            // double[1 + metrics]

  static constexpr size_t kCount = 8;
  std::array<ValueId*, kCount> all() {
    return {&weights, &gradients, &velocity, &statistics, &weights_lowered, &average, &averaged, &tally};
  }
};

struct UpdateOptions {
  bool averaging = false;      // the update corrects towards an average that others compute
  int64_t accumulate = 1;      // batches whose gradients make one update
};

// Appends backward and the update of every parameter from `loss` as `train` (a Train node) says. Parameters, gradients and
// velocity become views of flat arenas, in the order in which backward finishes.
ArenaValues add_update(Graph& graph, ValueId loss, const Node& train, const UpdateOptions& options);

// Turns a step with its update into one that leaves the weights as they are: `arenas.statistics` becomes the mean, over
// `batches` batches, of each batch's mean and unbiased variance. StepScalars::accumulated counts the batches.
void average_statistics(Graph& step, ArenaValues& arenas, int64_t batches);

// Puts the parameters and statistics of a graph without updates into flat arenas with the offsets they have in `training`.
ArenaValues adopt_arenas(Graph& graph, const Graph& training, const ArenaValues& arenas);

// bf16 compute: activations and the weights that matrix units read become bfloat16; statistics, losses, parameter gradients
// and master weights stay float.
void lower_precision(Graph& graph, ArenaValues& arenas);

// Drops nodes that nothing asked for needs, and values nobody uses. Renumbers both; `keep` is updated along.
void remove_dead(Graph& graph, ArenaValues& keep);

// Puts nodes in the order of `key` (stable), drops those with a negative key, and mends producers.
void reorder_nodes(Graph& graph, const std::vector<int64_t>& key);

}  // namespace arbalest
