// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which elements Trilu keeps, on every device.

#include "base/host_device.h"
#include "graph/kernel.h"

namespace arbalest {

// Triangles of matrices, which are the last two axes of a row-major tensor. Kept are the elements on the k-th diagonal
// and above it (upper) or below it.
struct Triangle {
  int64_t matrices = 1, rows = 0, columns = 0;
  int64_t k = 0;  // between −rows and columns
  bool upper = true;

  explicit Triangle(const KernelRequest& request);

  ARBALEST_HOST_DEVICE int64_t elements() const { return matrices * rows * columns; }
  ARBALEST_HOST_DEVICE bool keeps(int64_t row, int64_t column) const {
    return upper ? column - row >= k : column - row <= k;
  }
};

}  // namespace arbalest
