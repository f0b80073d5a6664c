// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value as a strided view of another, if the nodes between them only take parts, transpose or reshape.

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

struct StridedView {
  ValueId base = kNone;  // row-major
  int64_t first = 0;     // of its elements: where the view begins
  Shape strides;         // of its elements: from one to the next along each axis of the view; 0 if there is but one
};

// In the nearest value of the shape `whole` that `value` comes from through nothing but Transpose, Slice, Split, Gather
// of one constant index, arbalest.Assemble of one box, Reshape and operators like it. None: there is no such value, or
// no strides say where elements lie.
std::optional<StridedView> view_in(const Graph& graph, ValueId value, const Shape& whole);

// The same in `base`, which may lie in any layout.
std::optional<StridedView> view_in(const Graph& graph, ValueId value, ValueId base);
// Whether the node is one that such a view leads through.
bool leads_through(const Graph& graph, const Node& node);

// All elements of a value in another order.
struct Rearrangement {
  Shape extents;               // of axes that the memory of the one is cut into, row-major
  std::vector<int64_t> turns;  // the memory of the other has these axes in this order
};

// The nodes' effect on the memory of the first one's input 0; each reads what the one before makes. They are Transpose,
// arbalest.ChangeLayout, Reshape and operators like these. None: an element's place is no sum over axes.
std::optional<Rearrangement> rearrangement(const Graph& graph, const std::vector<NodeId>& nodes);

}  // namespace arbalest
