// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which axes reductions take together, on every device.

#include <vector>

#include "ops/definition.h"
#include "ops/math/strided.h"

namespace arbalest {

struct ReduceTiesInput {
  enum : size_t { X, Y };
};

struct ReducedAxes {
  std::vector<bool> reduced;  // of the operand's axes
  bool keep = true;           // a reduced axis stays, with one element

  // From the attributes `axes` and `keepdims`. No axes: all, unless `noop_with_empty_axes` is 1.
  ReducedAxes(const Node& node, size_t rank);
  ReducedAxes(std::vector<bool> axes, bool keepdims) : reduced(std::move(axes)), keep(keepdims) {}

  // The result of reducing x. If axes are kept it lies as x does, else row-major.
  TensorType result(const TensorType& x) const;
  // How far neighbours along the axes of the operand are in a result of type y; 0: the axis is reduced.
  std::vector<int64_t> strides(const TensorType& y) const;
  // How many elements of a tensor of that shape make one of the result.
  int64_t count(const Shape& shape) const;
};

// A walk through x and the result y.
Strided reducing_walk(const ReducedAxes& axes, const TensorType& x, const TensorType& y);

// The attributes of a gradient of such a reduction of x.
Attributes reduce_gradient_attributes(const ReducedAxes& axes, const TensorType& x);

}  // namespace arbalest
