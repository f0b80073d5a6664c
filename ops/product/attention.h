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
  // Of the numbers that are added to scores, a row of keys for each query: steps of 0 where all samples, or all heads,
  // have the same. Samples and heads that have some of their own; 0: nothing is added.
  HeadSteps bias = {0, 0, 0};
  int64_t bias_samples = 0, bias_heads = 0;
  double scale;

  // Of Q (samples, heads, queries, depth) and of K and V (samples, heads, keys, depth), or with heads and rows changed
  // over where the attribute 'head_axes' says 2; of `added` (1 or samples, 1 or heads, queries, keys) without axes in
  // front or with them; nullptr: there is none. Throws GraphError at the node where they do not fit.
  AttentionProblem(const Node& node, const TensorType& q, const TensorType& k, const TensorType& v,
                   const TensorType* added);
  // Of the operator or of its gradient, with what it adds at input `bias`.
  AttentionProblem(const KernelRequest& request, size_t bias);

  bool biased() const { return bias_samples > 0; }
  Shape output_shape(const Node& node) const;
  Shape statistics_shape() const { return {samples, heads, queries, 1}; }

 private:
  void add_bias(const Node& node, const TensorType& type);
};

}  // namespace arbalest
