// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrices of one tensor that lie transposed in another.

#include <optional>

#include "ops/math/axis_list.h"

namespace arbalest {

// Element (r, c) of each matrix is at r · from_step + c in x, and at c · to_step + r in y.
struct Transposition {
  AxisList matrices;  // tensor 0: y; tensor 1: x
  int64_t rows = 1, columns = 1;
  int64_t from_step = 1, to_step = 1;

  // Matrices that lie one after the other, row-major in x.
  Transposition(int64_t batch, int64_t rows, int64_t columns)
      : rows(rows), columns(columns), from_step(columns), to_step(rows) {
    matrices.rank = 1;
    matrices.count = matrices.extent[0] = batch;
    matrices.stride[0][0] = matrices.stride[1][0] = rows * columns;
  }

  // Whether the matrices lie one after the other, without gaps, in both tensors.
  bool adjacent() const {
    const int64_t whole = rows * columns;
    return from_step == columns && to_step == rows && matrices.rank < 2 &&
           (matrices.count == 1 || (matrices.stride[0][0] == whole && matrices.stride[1][0] == whole));
  }

  // The largest power of two, at most `most`, that divides both axes and all distances in memory: so many neighbours
  // along either axis are one aligned word.
  int divisor(int most) const {
    int64_t all = int64_t(most) | rows | columns | from_step | to_step;
    for (int axis = 0; axis < matrices.rank; ++axis) all |= matrices.stride[0][axis] | matrices.stride[1][axis];
    return int(all & -all);
  }

  // The transposition in a walk through y, which has no gaps, and x. There is none if neighbours in y are neighbours in
  // x, or if no axis is x's innermost.
  static std::optional<Transposition> of(const Strided& walk) {
    const int last = walk.rank - 1;
    int inner = last;
    for (int axis = 0; axis < last; ++axis) {
      if (walk.stride[1][axis] == 1) inner = axis;
    }
    if (inner == last || walk.stride[0][last] != 1 || walk.stride[1][last] == 1) return std::nullopt;
    Transposition found(1, walk.extent[last], walk.extent[inner]);
    found.from_step = walk.stride[1][last];
    found.to_step = walk.stride[0][inner];
    found.matrices = {};
    for (int axis = 0; axis < last; ++axis) {
      if (axis != inner) found.matrices.add(walk, axis);
    }
    return found;
  }
};

}  // namespace arbalest
