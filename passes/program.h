// SPDX-License-Identifier: Apache-2.0
#pragma once
// The program that a graph asks for, as the loops that a plan repeats: one training step, one validation batch.

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_model.h"
#include "graph/graph.h"
#include "passes/passes.h"

namespace arbalest {

struct ProgramOptions {
  bool bf16 = false;
  bool fused_kernels = false;      // the devices have kernels for attention and statistics: in bfloat16 on GPUs
  bool generated_kernels = false;  // the devices compile kernels for regions: GPUs
  bool aside = false;              // small gradients of parameters run next to later nodes: GPUs, few learners
  DeviceModel device = device_model(kUsualDevice);  // with fused_kernels: whose kernels
  int learners = 1;                                 // that share a device, for the layouts of its kernels
  bool skips = false;                               // updates whose loss or gradients are not finite are skipped
  bool trains = true;              // false: the training loop is there for its weights and is not run; no gradients
  bool sums = false;               // several learners' gradients make an update
  bool averaging = false;          // updates correct towards an average of all learners
  bool restarts = false;           // of averaging: the rate may drop in a step, and learners start again from it
  bool alone = false;              // learners agree with no other: nothing but an update waits for a gradient
  int64_t validators = 1;          // devices that share validation's work
  int64_t validation_samples = 0;  // of the split; 0: as many as one batch of each device
  bool measures = true;            // whether the validation loop computes metrics
  std::vector<std::string> outputs = {};  // values that each batch of the validation loop hands out, by name
  std::set<std::string> without = {};     // optional passes that are left out
  Table<NodeId, bool> again = {};         // for the pass recompute: nodes of the training step
  bool check = true;                      // every graph after every pass
  // Called after each pass with its name and the training graph; for `arbalest plan --after PASS`.
  std::function<void(std::string_view pass, const Graph&)> after = nullptr;
};

enum class LoopRole : uint8_t {
  Train,        // a batch through forward, backward and the update
  Validate,     // a batch of the validation split through the slice that computes its metrics
  Recalibrate,  // before a validation: a training batch adds to averages of what batch norms see
};

// The tally's two sums whose quotient a mean is.
struct LoopMean {
  size_t sum = 0, weight = 0;
  bool counts = false;  // counts_samples(): the sum is a whole number but for the rounding of batches' shares
};

// A value that a loop measures. Means are in the loop's tally (add_tally()), in the order of its metrics.
struct LoopMetric {
  std::string name;  // of the graph's value
  MetricSpec spec;
  std::optional<MetricSpec::Better> better;  // none: nothing states it
  std::vector<LoopMean> means;               // Keeps::Mean: one, or those that `function` is of
  Graph function;                            // Keeps::Mean: as measured_means() has it; without nodes: the mean itself
  std::vector<ValueId> arguments;            // of the function, by mean
  bool of_batches = false;                   // Keeps::Mean: over what is computed of each batch, not over samples
  Node node;                                 // Keeps::Rows: the node that spec.finish() gets
  std::vector<TensorType> inputs;            // Keeps::Rows: the types that spec.finish() gets
  ValueId rows = kNone;                      // Keeps::Rows: the State that keeps them, float[samples, columns]
};

// A host node's preparation of a field of bytes, sample by sample, while a slot is filled.
struct LoopPreparation {
  Node node;
  int field = 0;            // of the source
  std::string output_name;  // of the value
  TensorType output;        // of the batch
};

// One graph that the plan repeats, batch after batch, with the facts of its Prefetch node.
struct Loop {
  LoopRole role = LoopRole::Train;
  Graph graph;
  ArenaValues arenas;
  int64_t batch = 0;
  int64_t depth = 0;    // batches read ahead
  int64_t batches = 0;  // of one run of the loop on each device that runs it; 0: as many as the split gives
  // The input that holds each of the source's fields; kNone if the graph does not use the field or has a host node
  // prepare it. The outputs of the preparations follow, in their order.
  std::vector<ValueId> fields;
  std::vector<LoopPreparation> preparations;
  std::vector<LoopMetric> metrics;
  // Validation: the batch that was asked for, before it was made smaller, and the measured values that padding has a
  // part in (reads_padding()), by name.
  int64_t asked_batch = 0;
  std::vector<std::string> padded;
  size_t sums = 1;               // of the tally, without counts of updates
  std::vector<ValueId> outputs;  // as ProgramOptions::outputs names them
};

struct Program {
  std::vector<Loop> loops;     // at most one of a role; Train, which every program has, is the first
  Node train;                  // learning rate, schedule, epochs
  int64_t accumulate = 1;      // batches of an update
  double ema = 0;              // decay, per update, of the weights' moving average; 0: there is none
  int64_t validate_every = 1;  // epochs
  DeviceModel device = device_model(kUsualDevice);  // with fused_kernels: whose kernels
  bool skips = false;                               // as ProgramOptions has it

  const Loop* find(LoopRole role) const;  // nullptr: the program has no such loop
  Loop* find(LoopRole role);
  const Loop& training() const { return loops.front(); }
  Loop& training() { return loops.front(); }
};

// True if padding leaves means over the rows of a batch as they are: the last batch of so many samples is whole, or
// repeats each of its samples as often as the others.
bool pads_evenly(int64_t samples, int64_t batch);

// A mean of the loop, or a function of means, from its tally's sums. It is NaN, undefined, if weights sum to 0, as when
// all labels are missing. The mean of such a batch is 0.
double mean_of(const LoopMetric& metric, const std::vector<double>& sums);

// Runs the passes over a verified graph, as the table in passes/pipeline.cpp has them. Throws GraphError as
// check_optional() does, and unless the graph has exactly one Prefetch, one Train, and at most one Synchronize and
// Validate each.
Program make_program(Graph graph, const ProgramOptions& options);

// The names of the passes in their order: all, or only those that may be left out.
std::vector<std::string> pass_names(bool optional_only = false);

// Throws GraphError, with the names that may stand in ProgramOptions::without, if `name` is none of them.
void check_optional(std::string_view name);

}  // namespace arbalest
