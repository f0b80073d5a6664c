// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resize as sums over elements of the input: a list of terms for each place along each axis, whatever the mode.

#include <vector>

#include "base/checked.h"
#include "graph/kernel.h"
#include "ops/math/strided.h"

namespace arbalest {

// Terms of each place i along an axis: start[i] to start[i + 1] − 1 of `index` and `weight`.
struct AxisTerms {
  std::vector<int64_t> start = {0};
  std::vector<int64_t> index;
  std::vector<double> weight;

  int64_t places() const { return int64_t(start.size()) - 1; }
  // The gradient's terms: for each of `extent` elements, the places that it contributes to.
  AxisTerms transposed(int64_t extent) const;
};

// The request in the attributes of Resize or Upsample.
struct Resizing {
  Shape shape;                     // of the result
  std::vector<Quotient> scales;    // along each axis; 1: it stays as it is
  std::vector<double> begin, end;  // of the region, in fractions of the axis (tf_crop_and_resize)

  Resizing(const Node& node, const Shape& x);
  AxisTerms terms(const Node& node, const Shape& x, size_t axis) const;
};

// A walk through the result in the order in which it lies in memory, outermost axis first. Along an axis without terms
// element i is made of element i; neighbouring axes of that kind are merged.
struct Resampling {
  static constexpr int kMaxRank = int(Strided::kMaxRank);
  int rank = 0;
  int64_t extent[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};  // of the source
  int terms[kMaxRank] = {};       // -1: none
  int64_t count = 0;
  double outside = 0;            // value of a place without terms
  std::vector<AxisTerms> lists;  // `index` in elements of the source's memory

  // From x to y. `backward`: from the gradient of y to the gradient of x.
  Resampling(const Node& node, const TensorType& x, const TensorType& y, bool backward);
};

// The same walk with four axes, whatever the rank: outer · rows · columns · inner. The terms of an element are products
// of those of its row and of its column.
struct RowResampling {
  int64_t outer = 1, outer_stride = 0;  // the first axis, if it has no terms
  AxisTerms rows;                       // of the axes between, all taken together
  AxisTerms columns;                    // of the last axis, or of the one before `inner`
  int64_t column_stride = 1;
  int64_t inner = 1, inner_stride = 1;  // the last axis, if it has no terms

  explicit RowResampling(const Resampling& resampling);
};

}  // namespace arbalest
