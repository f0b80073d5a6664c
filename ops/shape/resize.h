#pragma once
// How Resize makes elements of those around them: a list of terms for each place along each axis, whatever the mode.

#include <vector>

#include "graph/checked.h"
#include "graph/kernel.h"
#include "ops/math/strided.h"

namespace arbalest {

// What each place along an axis is made of: terms start[i] to start[i + 1] − 1 of `index` and `weight`.
struct AxisTerms {
  std::vector<int64_t> start = {0};
  std::vector<int64_t> index;
  std::vector<double> weight;

  // What each of `extent` elements flows into: the gradient's terms.
  AxisTerms transposed(int64_t extent) const;
};

// What is asked for, from the attributes of Resize or Upsample.
struct Resizing {
  Shape shape;                     // of the result
  std::vector<Quotient> scales;    // along each axis; 1: it stays as it is
  std::vector<double> begin, end;  // of the region, in parts of the axis (tf_crop_and_resize)

  Resizing(const Node& node, const Shape& x);
  AxisTerms terms(const Node& node, const Shape& x, size_t axis) const;
};

// A walk through the result in the order in which it lies in memory, outermost axis first. Along an axis without terms
// element i is made of element i; neighbouring ones of those are merged.
struct Resampling {
  static constexpr int kMaxRank = int(Strided::kMaxRank);
  int rank = 0;
  int64_t extent[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};  // of the source
  int terms[kMaxRank] = {};       // -1: none
  int64_t count = 0;
  double outside = 0;            // where there are no terms
  std::vector<AxisTerms> lists;  // `index` in elements of the source's memory

  // From x to y; `backward`: from what flows back into y to what flows back into x.
  Resampling(const Node& node, const TensorType& x, const TensorType& y, bool backward);
};

}  // namespace arbalest
