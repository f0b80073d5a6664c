// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings that a sweep varies because the graph file says so.

#include <string>
#include <vector>

#include "graph/graph.h"
#include "tools/command/options.h"

namespace arbalest {

// The texts of a graph file's metadata "vary", each as --vary takes it, in the order of the file:
//   <ir_version: 8, opset_import: ["" : 17], metadata_props: ["vary": "train.lr=0.03,0.1; seed=1..5"]>
// A binary model has the same entry in metadata_props. Those are left out that name a setting which the options vary or
// state themselves, and with --find-lr rates. `graph`: the file's. Throws GraphError that says where in the file a text
// is wrong.
std::vector<std::string> graph_variations(const SweepOptions& options, const Graph& graph);

}  // namespace arbalest
