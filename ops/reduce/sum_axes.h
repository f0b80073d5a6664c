// SPDX-License-Identifier: Apache-2.0
#pragma once
// A walk through a tensor and its sums, split into axes that are kept and axes that are summed over.

#include "base/host_device.h"
#include "ops/math/strided.h"

namespace arbalest {

// Some axes of a walk through two tensors: elements in row-major order, and where they lie.
struct AxisList {
  int rank = 0;
  int64_t count = 1;  // of elements
  int64_t extent[Strided::kMaxRank] = {};
  int64_t stride[2][Strided::kMaxRank] = {};

  void add(const Strided& walk, int axis) {
    extent[rank] = walk.extent[axis];
    for (int t = 0; t < 2; ++t) stride[t][rank] = walk.stride[t][axis];
    count *= walk.extent[axis];
    ++rank;
  }
  ARBALEST_HOST_DEVICE int64_t offset(int64_t index, int tensor) const {
    int64_t at = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      at += index % extent[axis] * stride[tensor][axis];
      index /= extent[axis];
    }
    return at + index * stride[tensor][0];
  }
};

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
