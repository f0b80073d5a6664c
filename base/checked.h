// SPDX-License-Identifier: Apache-2.0
#pragma once
// Arithmetic on numbers that come from files and options. Results that no memory holds are refused where they are made;
// afterwards sums and products are right. And quotients that are exact.

#include <cmath>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/host_device.h"

namespace arbalest {

// Bytes that a process can address (47 bits): more in one place is a mistake in the graph or the command.
inline constexpr int64_t kMostBytes = int64_t{1} << 47;

// a · b. Throws GraphError "WHAT: A × B is more than can be counted" if the result does not fit.
inline int64_t checked_multiply(int64_t a, int64_t b, const std::string& what) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  throw GraphError(what + ": " + std::to_string(a) + " × " + std::to_string(b) + " is more than can be counted");
}

// The same of bytes, which are 0 or more, up to kMostBytes.
inline int64_t memory_of(int64_t bytes, int64_t times, const char* what) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(bytes, times, &product) && product <= kMostBytes) return product;
  throw GraphError(std::string(what) + ": " + std::to_string(bytes) + " bytes × " + std::to_string(times) +
                   " is more than any memory holds (2^47 bytes)");
}
inline int64_t memory_sum(int64_t a, int64_t b, const char* what) {
  if (a <= kMostBytes && b <= kMostBytes - a) return a + b;
  throw GraphError(std::string(what) + ": more than any memory holds (2^47 bytes)");
}

// Quotients that become indices or counts. Whole numbers are divided as such. Rounded arithmetic may end just below a
// whole number that the exact quotient is, and the index or the count is then one too small.

// over / under, exactly. `under` is above 0.
struct Quotient {
  __int128 over = 0, under = 1;
};

// The greatest whole number that is not more than the quotient, and the least that is not less.
constexpr __int128 floor_of(const Quotient& q) {
  const __int128 whole = q.over / q.under;
  return whole * q.under > q.over ? whole - 1 : whole;
}
constexpr __int128 ceil_of(const Quotient& q) {
  return -floor_of({-q.over, q.under});
}
// The nearest whole number, of two the greater.
constexpr __int128 round_of(const Quotient& q) {
  return floor_of({2 * q.over + q.under, 2 * q.under});
}

// floor(number), if `number` was computed of rounded numbers such as 0.1: one that is a few roundings below a whole
// number is meant to be that.
ARBALEST_HOST_DEVICE inline int64_t whole_part(double number) {
  constexpr double kRoundings = 0x1p-50;
  return int64_t(std::floor(number + std::fabs(number) * kRoundings));
}

}  // namespace arbalest
