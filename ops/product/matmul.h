// SPDX-License-Identifier: Apache-2.0
#pragma once
// MatMul's extents: matrices in the last two axes, batches of them in the others, which are broadcast.

#include "graph/op.h"
#include "ops/math/strided.h"

namespace arbalest {

struct BatchedProduct {
  int64_t rows, depth, columns;
  bool trans_a, trans_b;
  Shape batch;  // of the output
  std::vector<int64_t> a_steps,
      b_steps;  // elements from one matrix to the next along each axis of `batch`; 0: broadcast

  // Takes operands of rank 1 or more; one of rank 1 is a row of A or a column of B. Throws GraphError at the node if
  // they do not fit. The attributes transA and transB are read if the operator has them.
  BatchedProduct(const Node& node, const TensorType& a, const TensorType& b);

  Shape output_shape(const TensorType& a, const TensorType& b) const;
  // Walk over the matrices of the output, A and B, with steps in elements.
  Strided walk() const;
  // Makes one matrix of those of A, if they follow each other and meet one B.
  void join_rows();
};

}  // namespace arbalest
