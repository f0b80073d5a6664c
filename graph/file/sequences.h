// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequences of tensors, which are not values in this library: exporters write Python's lists as sequences and take them
// apart again.

#include "graph/file/graph_source.h"

namespace arbalest {

// Replaces nodes that make sequences (SplitToSequence, SequenceConstruct) and nodes that read them (SequenceAt at a
// constant index, ConcatFromSequence) with Split, Slice, Squeeze, Concat and Identity. A sequence stays as it is if it
// has other readers or if constants do not determine its parts.
void take_sequences_apart(GraphSource& source);

}  // namespace arbalest
