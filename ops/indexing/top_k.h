// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order in which TopK puts elements, on every device.

#include "base/host_device.h"
#include "graph/types.h"

namespace arbalest {

struct TopKOutput {
  enum : size_t { Values, Indices };
};

struct TopKOrder {
  bool largest = true;

  // True if a at index i comes before b at index j. Among equal ones the first comes first; a NaN is greater than every
  // number.
  template <typename W>
  ARBALEST_HOST_DEVICE bool before(W a, int64_t i, W b, int64_t j) const {
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan == largest;
    if (a_nan || a == b) return i < j;
    return (a > b) == largest;
  }
};

}  // namespace arbalest
