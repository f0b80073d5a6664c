// SPDX-License-Identifier: Apache-2.0
#pragma once
// Division in kernels by a number that is known before they are launched, which is a product and a shift.
// Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994:
// https://doi.org/10.1145/178243.178249

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace arbalest {

// Exact for numbers from 0 to 2³¹ − 1 and divisors from 1 to 2³¹ − 1. Others act as 1, and no kernel uses the result:
// there are no elements then, or it divides in 64 bits.
struct Divisor {
  uint32_t multiplier = uint32_t{1} << 31;  // ⌈2^shift / divisor⌉
  int shift = 31;

  Divisor() = default;
  explicit Divisor(int64_t divisor) {
    if (divisor < 2 || divisor >= int64_t{1} << 31) return;
    shift = 31 + int(std::bit_width(uint64_t(divisor - 1)));
    multiplier = uint32_t(((uint64_t{1} << shift) + uint64_t(divisor - 1)) / uint64_t(divisor));
  }
  ARBALEST_HOST_DEVICE int quotient(int n) const { return int(uint64_t(uint32_t(n)) * multiplier >> shift); }
};

}  // namespace arbalest
