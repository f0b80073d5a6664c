// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values in the memory layout that an operator wants (Op::layout).

#include <vector>

#include "graph/op.h"

namespace arbalest {

// `value` itself if it lies in memory as `layout` says, else what an arbalest.ChangeLayout node makes of it. The
// node is appended to the graph; it takes its place in the file and its stage from `reader`.
ValueId in_layout(Graph& graph, ValueId value, Layout layout, const Node& reader);

// Whether Transpose with this permutation leaves the elements of a tensor of rank 4 or more where they are. It does if
// the layouts `from` and `to` say the same of both orders of axes: (N, C, …) channels-last is (N, …, C) row-major. It
// does not depend on the extents.
bool keeps_memory(const std::vector<int64_t>& permutation, Layout from, Layout to);

// The permutation of an image's axes, (N, C, …), that names them in the order in which they lie channels-last, and the
// one back. An image's shape in that order.
std::vector<int64_t> channels_to_last(size_t rank);
std::vector<int64_t> channels_from_last(size_t rank);
Shape with_channels_last(const Shape& image);

// The permutation that makes columns of the rows of matrices, the last two of `rank` axes.
std::vector<int64_t> rows_as_columns(size_t rank);

// Whether an image (N, C, …) with two axes of pixels or more has the elements of (N, C, L): its pixels are one axis
// there.
bool merges_pixels(const Shape& image, const Shape& merged);

}  // namespace arbalest
