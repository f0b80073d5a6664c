// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models that were exported for one batch, and are to run in any. Exporters write the batch into shapes that nodes
// state, as in the Reshape to (1, 512) in front of a classifier, unless they are asked for a batch that varies.

#include <cstdint>

#include "graph/graph.h"

namespace arbalest {

// Frees the nodes of a model, whose inputs state `batch` samples along their first axis, from that number, so that
// they take any. What the model gives in its own batch stays the same to the bit:
//   - a Reshape to a shape that states the batch finds it by what is left of the elements;
//   - other lists, such as the shape of an Expand or the sizes of a Resize, get it from the first input;
//   - constants that have the same elements for each sample keep those of one;
//   - what has one element for all samples is spread where a node takes no other, as a class token in a Concat.
// The place of samples in memory says which extent of a Reshape is the batch; it is found by running nodes in a batch
// twice as large (sample_probe.h). If a node fits no other batch for another reason, the graph stays as it is. Its
// types fail to be inferred then, with the node's name. Whether samples stay apart is for others to ask
// (passes/samples_apart.h). `graph` is not verified yet.
void open_batch(Graph& graph, int64_t batch);

}  // namespace arbalest
