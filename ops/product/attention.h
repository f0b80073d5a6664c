// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scaled dot-product attention over heads: extents, and where each sample, head and row begins in memory. Q, K and V
// are separate operands, or packed in one, that of arbalest.PackedAttention.

#include "graph/op.h"

namespace arbalest {

// Outputs of arbalest.Attention and arbalest.PackedAttention.
struct AttentionOutput {
  enum : size_t { Y, Statistics };
};

// Attention of few rows in bfloat16 on GPUs takes so many at most. It takes every even depth up to the second number,
// and multiples of eight beyond.
inline constexpr int kMostShortRows = 64, kMostPairs = 32;

// How far apart samples, heads and rows of an operand lie, in elements, and where the first one is; a row's elements
// follow each other.
struct HeadSteps {
  int64_t sample, head, row;
  int64_t first = 0;
};

// Numbers of operands among the inputs of the operator or of its gradient. Q is input 0. The gradient's outputs for Q,
// K and V have the same numbers as these inputs.
struct AttentionPlaces {
  size_t k, v, bias;
  size_t y, statistics, dy;  // inputs of the gradient
  size_t dbias;              // output of the gradient
};

struct AttentionProblem {
  int64_t samples, heads, queries, keys, depth;
  HeadSteps q, k, v, y;
  // Steps through the bias, which is added to scores: a row of keys for each query. Steps are 0 along samples, or
  // heads, that all have the same. bias_samples, bias_heads: how many have one of their own, which samples take in
  // turn; 0: there is no bias.
  HeadSteps bias = {0, 0, 0};
  int64_t bias_samples = 0, bias_heads = 0;
  bool causal = false;  // the bias hides all keys after each row and does nothing else
  double scale;
  AttentionPlaces at;

  // Takes the types of the inputs of an operator or of its gradient, with a token for one that is left out. Inputs are
  // Q (samples, heads, queries, depth), K and V (samples, heads, keys, depth), with heads and rows swapped if the
  // attribute 'head_axes' says 2. Packed inputs are (samples, rows, 3 · heads · depth): a row of Q, of K and of V after
  // each other. A bias is (a divisor of samples, 1 or heads, queries, keys) and may lack the axes in front: sample i
  // takes bias i modulo their number. Throws GraphError at the node if they do not fit.
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

}  // namespace arbalest
