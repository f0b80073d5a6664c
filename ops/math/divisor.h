// SPDX-License-Identifier: Apache-2.0
#pragma once
// Division in kernels by a number that is known before they are launched, which is a product and a shift.

#include <cstdint>

#include "base/host_device.h"

namespace arbalest {

// Exact if n · divisor < 2³² and divisor > 1.
struct Divisor {
  uint32_t divisor = 2, inverse = 0;

  Divisor() = default;
  explicit Divisor(int64_t d) : divisor(uint32_t(d)), inverse(uint32_t((uint64_t{1} << 32) / uint32_t(d) + 1)) {}
  ARBALEST_HOST_DEVICE int quotient(int n) const { return int(uint64_t(uint32_t(n)) * inverse >> 32); }
};

}  // namespace arbalest
