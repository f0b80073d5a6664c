// SPDX-License-Identifier: Apache-2.0
#pragma once
// A graph with its weights in the memory of devices, ready to run batches through.

#include <memory>

#include "executor/run/binding.h"
#include "executor/session/session.h"
#include "executor/weights/weights_file.h"

namespace arbalest {

class LoadedModel {
 public:
  // Opens the split, plans the pass on all devices of `options`, allocates, and reads options.files.weights; without
  // that file weights are what the graph's initialisers say. Throws GraphError, and RunError if the file does not
  // fit the graph. Each of several processes has a part of the pass, on its own devices; throws GraphError if they
  // differ.
  LoadedModel(Graph graph, const SessionOptions& options, const InferenceRequest& asked);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const Loop& loop() const { return *prepared.program.find(LoopRole::Validate); }
  const LoopPlan& planned() const { return plan.handles.loops.front(); }
  // Element type and shape of one sample of a requested value, as read_output() returns it: float if the graph has a
  // narrower type.
  TensorType output_type(size_t index) const;
  // All rows of the batch in the replica's pinned slot of `tick`, row-major.
  std::vector<std::byte> read_output(const Replica& replica, size_t index, int64_t tick) const;

  // Names of the classes: the source's, or else those in the file of weights; empty if they only have numbers.
  const std::vector<std::string>& class_names() const { return class_names_; }

  const Prepared prepared;
  Plan plan;
  const std::unique_ptr<Binding> binding;

 private:
  static Plan own_plan(const Prepared& prepared, const SessionOptions& options);
  void put_weights(const SessionOptions& options);
  void name_classes(const WeightsFile* file);

  std::vector<std::string> class_names_;
};

}  // namespace arbalest
