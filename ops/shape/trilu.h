#pragma once
// Which elements Trilu keeps, on every device.

#include "graph/host_device.h"
#include "graph/kernel.h"

namespace arbalest {

// Of matrices, the last two axes of a row-major tensor: what is on and above (upper) or below the k-th diagonal.
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
