// SPDX-License-Identifier: Apache-2.0
#pragma once
// Indices of GatherND and ScatterND that name a box: exporters write them for slices, x[:, 1:] = y.

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// A part of a tensor: from `first` on, `count` elements along each axis.
struct IndexBox {
  std::vector<int64_t> first, count;
  // Whether it is all of the tensor along the axis.
  bool whole(const Shape& shape, size_t axis) const { return count[axis] == shape[axis]; }
};

// The box that the indices name in a tensor of this shape, row by row; none if they name another part of it, or if that
// is not known. The content of the indices' own parts has to be known, such as a Range for each axis, not all of it.
std::optional<IndexBox> box_of(const Graph& graph, ValueId indices, const Shape& shape);

}  // namespace arbalest
