#pragma once
// Scaled dot-product attention over heads: extents, and where each sample, head and row begins in memory.

#include "graph/op.h"

namespace arbalest {

// How far apart samples, heads and rows of an operand lie, in elements; a row's elements follow each other.
struct HeadSteps {
  int64_t sample, head, row;
};

struct AttentionProblem {
  int64_t samples, heads, queries, keys, depth;
  HeadSteps q, k, v, y;
  double scale;

  // Of Q (samples, heads, queries, depth) and of K and V (samples, heads, keys, depth), or with heads and rows changed
  // over where the attribute 'head_axes' says 2. Throws GraphError at the node where they do not fit.
  AttentionProblem(const Node& node, const TensorType& q, const TensorType& k, const TensorType& v);

  Shape output_shape(const Node& node) const;
  Shape statistics_shape() const { return {samples, heads, queries, 1}; }
};

}  // namespace arbalest
