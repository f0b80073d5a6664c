// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time that each layer of the model takes. CPU devices record the nodes inside their tasks as they run
// (TraceFile::nodes). Elsewhere nodes are timed once the run is over (TraceFile::timed), and the time of an instance is
// divided among its nodes in proportion to these times.

#include <cstdint>
#include <string>
#include <vector>

#include "executor/trace/trace_file.h"

namespace arbalest {

// A node's share of the time that its task takes.
struct NodeShare {
  int32_t launch = kNone;  // into TraceFile::launches
  double share = 0;
};

// By task, in the order in which its nodes run; empty if the trace knows none.
Table<TaskId, std::vector<NodeShare>> node_shares(const TraceFile& trace);

struct LayerTime {
  std::string name;        // "conv2": of the node, and of the gradients that autodiff made of it
  std::string of;          // the node's operator, "Conv"; without that node the gradient's; "": unknown
  int64_t forward_ns = 0;  // over all learners and iterations of training
  int64_t backward_ns = 0;
  int64_t total_ns() const { return forward_ns + backward_ns; }
};

// The costliest first; empty if the trace knows no nodes.
std::vector<LayerTime> layer_times(const TraceFile& trace);

// The layer that a node of a step belongs to, and whether the node is one of its gradients: "conv2.grad_weight" is a
// gradient of "conv2".
struct LayerNode {
  std::string layer;
  bool gradient = false;
};
LayerNode layer_of(const std::string& node);

}  // namespace arbalest
