// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measures how the time of a training step divides among its nodes.

#include <string>
#include <vector>

#include "executor/run/binding.h"
#include "executor/trace/trace_file.h"
#include "graph/op.h"

namespace arbalest {

struct NodeProfile {
  std::string name;
  std::string layer;   // that it belongs to: layer_of() in executor/trace/layer_times.h
  std::string op;      // qualified
  std::string engine;  // Kernel::engine()
  Stage stage = Stage::Forward;
  double seconds = 0;  // in the step's order, while nothing else runs on the device
  Cost cost;
};

// The best rates that a device was measured to reach with operators of this build. These are Relu from memory to
// memory, and a product of large matrices in the precision of the run. 0: not available.
struct DeviceLimits {
  double bytes_per_second = 0, flops_per_second = 0;

  // The least seconds of such work; 0 if the limits are unknown.
  double seconds(const Cost& cost) const;
};

struct StepProfile {
  std::vector<NodeProfile> nodes;  // of the first learner's step, in order, except for views of memory
  double seconds = 0;              // the step as training runs it, while nothing else runs on the device
  int64_t library_bytes = -1;      // of it, before anything was allocated: Binding::library_bytes()
  int64_t taken_bytes = -1;        // of the device's memory after training: Device::taken_bytes()
  DeviceLimits limits;
};

// ns of each node of every learner's step. They are the times of the first learner's nodes, run one after the other in
// the step's order while nothing else runs on the device. Call it after a run: the values that the step writes are not
// valid afterwards.
std::vector<NodeTime> time_nodes(const Binding& binding);

// Times the step of a plan's first learner. Call it after a run: the values that the step writes are not valid
// afterwards.
StepProfile profile_step(const Binding& binding, const BindOptions& options, DataType precision);

}  // namespace arbalest
