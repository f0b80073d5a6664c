// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value as a strided view of another, if the nodes between them only take parts, transpose or reshape.

#include <optional>

#include "graph/graph.h"

namespace arbalest {

struct StridedView {
  ValueId base = kNone;  // row-major
  int64_t first = 0;     // of its elements: where the view begins
  Shape strides;         // of its elements: from one to the next along each axis of the view; 0 if there is but one
};

// In the nearest value of the shape `whole` that `value` comes from through nothing but Transpose, Slice, Split, Gather
// of one constant index, Reshape and operators like it. None: there is no such value, or no strides say where elements
// lie.
std::optional<StridedView> view_in(const Graph& graph, ValueId value, const Shape& whole);

}  // namespace arbalest
