// SPDX-License-Identifier: Apache-2.0
#pragma once
// A graph for reading, whatever passes have made of it; graph files (graph/file/graph_file.h) state less.

#include <nlohmann/json.hpp>
#include <string>

#include "graph/graph.h"

namespace arbalest {

// One line a value that has no producer, a node and a carry: "h1 = Conv <strides = [1, 1]> (x, h1.weight)  #
// float[64,16,32,32]".
std::string list_graph(const Graph& graph);

nlohmann::json graph_record(const Graph& graph);

}  // namespace arbalest
