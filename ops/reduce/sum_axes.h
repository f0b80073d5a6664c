// SPDX-License-Identifier: Apache-2.0
#pragma once
// A walk through a tensor and its sums, split into axes that are kept and axes that are summed over.

#include "ops/math/axis_list.h"

namespace arbalest {

// Axes of a walk through X and S, which is broadcast along the reduced axes.
struct SumAxes {
  AxisList kept, reduced;    // without the innermost axis if it is kept
  int64_t inner = 1;         // outputs along the innermost axis; X's stride there is 1
  int64_t inner_stride = 1;  // of S there

  explicit SumAxes(const Strided& walk) {
    const int last = walk.rank - 1;
    if (walk.stride[1][last] != 0) inner = walk.extent[last], inner_stride = walk.stride[1][last];
    for (int axis = 0; axis < walk.rank; ++axis) {
      if (walk.stride[1][axis] == 0) {
        reduced.add(walk, axis);
      } else if (axis != last) {
        kept.add(walk, axis);
      }
    }
  }
};

}  // namespace arbalest
