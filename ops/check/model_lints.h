// SPDX-License-Identifier: Apache-2.0
#pragma once
// Notes on what a called model's file stores.

#include <string>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// Tensors that are trained and look like constants, which PyTorch's exporters store without a word about it: two or
// three different numbers (masks, torch.eye), evenly spaced ones (grids, ranges), rows of sines and cosines
// (positions), or one number throughout under a name that the exporter has made up.
std::vector<std::string> constant_like_weights(const Graph& graph);

// Tables of embeddings that are trained as a whole and have one row of zeros, as nn.Embedding(padding_idx=…) makes.
std::vector<std::string> padded_tables(const Graph& graph);

}  // namespace arbalest
