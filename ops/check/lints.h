// SPDX-License-Identifier: Apache-2.0
#pragma once
// Notes about what a sound graph probably does not mean.

#include <string>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// Notes about a verified graph, each beginning with the node. Nodes of called models get none, except a Softmax that a
// loss takes for logits, and images that are normalised again.
std::vector<std::string> lint(const Graph& graph);

}  // namespace arbalest
