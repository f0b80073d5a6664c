// SPDX-License-Identifier: Apache-2.0
#pragma once
// Some of the axes that two tensors are walked through along.

#include "base/host_device.h"
#include "ops/math/strided.h"

namespace arbalest {

// Some axes of a walk through two tensors: elements in row-major order, and where they lie.
struct AxisList {
  int rank = 0;
  int64_t count = 1;  // of elements
  int64_t extent[Strided::kMaxRank] = {};
  Divisor of_extent[Strided::kMaxRank];
  int64_t stride[2][Strided::kMaxRank] = {};

  void add(const Strided& walk, int axis) {
    extent[rank] = walk.extent[axis];
    of_extent[rank] = walk.of_extent[axis];
    for (int t = 0; t < 2; ++t) stride[t][rank] = walk.stride[t][axis];
    count *= walk.extent[axis];
    ++rank;
  }
  ARBALEST_HOST_DEVICE int64_t offset(int64_t index, int tensor) const {
    int64_t at = 0;
    const bool small = count < (int64_t{1} << 31);
    for (int axis = rank - 1; axis > 0; --axis) {
      const int64_t rest = small ? int64_t(of_extent[axis].quotient(int(index))) : index / extent[axis];
      at += (index - rest * extent[axis]) * stride[tensor][axis];
      index = rest;
    }
    return at + index * stride[tensor][0];
  }
};

}  // namespace arbalest
