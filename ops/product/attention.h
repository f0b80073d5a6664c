#pragma once
// Scaled dot-product attention over heads: extents, and where each sample, head and row begins in memory. Q, K and V
// are operands of their own, or lie beside each other in one, packed: that of arbalest.PackedAttention.

#include "graph/op.h"

namespace arbalest {

// How far apart samples, heads and rows of an operand lie, in elements, and where the first one is; a row's elements
// follow each other.
struct HeadSteps {
  int64_t sample, head, row;
  int64_t first = 0;
};

// Which inputs of the operator or of its gradient hold what, and which outputs of the gradient. Q is input 0; the
// gradients of Q, K and V are outputs of the same numbers as they.
struct AttentionPlaces {
  size_t k, v, bias;
  size_t y, statistics, dy;  // of the gradient
  size_t dbias;              // likewise, an output
};

struct AttentionProblem {
  int64_t samples, heads, queries, keys, depth;
  HeadSteps q, k, v, y;
  // Of the numbers that are added to scores, a row of keys for each query: steps of 0 where all samples, or all heads,
  // have the same. Samples and heads that have some of their own; 0: nothing is added.
  HeadSteps bias = {0, 0, 0};
  int64_t bias_samples = 0, bias_heads = 0;
  double scale;
  AttentionPlaces at;

  // Of an operator, or of its gradient, with inputs of these types, a token for one that is left out. They are Q
  // (samples, heads, queries, depth), K and V (samples, heads, keys, depth), or with heads and rows changed over where
  // the attribute 'head_axes' says 2; or packed (samples, rows, 3 · heads · depth), a row of Q, of K and of V after
  // each other. A bias is (1 or samples, 1 or heads, queries, keys) without axes in front or with them. Throws
  // GraphError at the node where they do not fit.
  AttentionProblem(const Node& node, const std::vector<TensorType>& inputs, bool gradient);
  AttentionProblem(const KernelRequest& request, bool gradient)
      : AttentionProblem(request.node, request.inputs, gradient) {}

  bool packed() const { return at.k == 0; }
  bool biased() const { return bias_samples > 0; }
  Shape output_shape() const;
  Shape statistics_shape() const { return {samples, heads, queries, 1}; }

 private:
  void place_parts(const Node& node, const TensorType& packed);
  void place_operands(const Node& node, const TensorType& q, const TensorType& k, const TensorType& v);
  void add_bias(const Node& node, const TensorType& type);

  int64_t output_head_axis_ = 1;
};

std::unique_ptr<Kernel> attention_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> attention_grad_cpu(const KernelRequest& request);

}  // namespace arbalest
