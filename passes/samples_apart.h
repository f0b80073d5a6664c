// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that were exported for a batch of a certain size, and are called with another.

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// Called models whose files state a number for the batch, or those that leave it open.
enum class ModelBatch : uint8_t { Fixed, Open };

struct MixingNode {
  Node node;
  int64_t batch = 0;  // that its model was exported for; 0: it is open
};

// A node of a called model that mixes samples, or fits none, if the model runs in other batches than those it was
// exported for. What the model gives for a sample would depend on the others, and not be what its own batch gives.
// Nothing if there is none, or no such model. `graph` is verified; batch norms are taken as inference runs them.
std::optional<MixingNode> find_mixing(const Graph& graph, ModelBatch which = ModelBatch::Fixed);

// Throws GraphError if there is such a node in a model whose batch is fixed, and one of `batches`, in samples of
// Prefetch, is another than the model's.
void check_samples_apart(const Graph& graph, const std::vector<int64_t>& batches);

// The same as verify(). An error in a model that is none in the batch that the model was exported for says so, and what
// to do. An error in one of the graph's own nodes names a node that mixes samples in a model that it reads.
void verify_called(Graph& graph);

}  // namespace arbalest
