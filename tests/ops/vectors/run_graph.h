// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a whole graph node by node on a test device: what test vectors are compared with.

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "ops/check/harness.h"

namespace arbalest::test {

// A tensor as files hold it: elements in logical row-major order.
struct Logical {
  TensorType type;
  std::vector<double> values;
};

// Turns the layers of a verified graph into operators with kernels. Throws GraphError.
void make_runnable(Graph& graph);

// The values of a runnable graph from those of its inputs, by name; constants and parameters have their initial values.
// Throws RunError if a kernel is missing or touches what it must not.
std::map<std::string, Logical> run_graph(TestDevice& device, const Graph& graph,
                                         const std::map<std::string, Logical>& inputs, const StepScalars& scalars = {});

}  // namespace arbalest::test
