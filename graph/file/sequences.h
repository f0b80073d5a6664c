#pragma once
// Sequences of tensors, which are no values here: exporters write Python's lists so, and take them apart again.

#include "graph/file/graph_source.h"

namespace arbalest {

// What makes a sequence (SplitToSequence, SequenceConstruct) and what reads it (SequenceAt at a constant place,
// ConcatFromSequence) become Split, Slice, Squeeze, Concat and Identity. A sequence that has other readers, or whose
// parts are not told by constants, stays as it is.
void take_sequences_apart(GraphSource& source);

}  // namespace arbalest
