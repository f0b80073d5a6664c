#pragma once
// Values in the memory layout that an operator wants (Op::layout).

#include "graph/op.h"

namespace arbalest {

// `value` itself where it lies in memory as `layout` says, else what an arbalest.ChangeLayout node makes of it. The
// node is appended to the graph; it takes its place in the file and its stage from `reader`.
ValueId in_layout(Graph& graph, ValueId value, Layout layout, const Node& reader);

}  // namespace arbalest
