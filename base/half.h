// SPDX-License-Identifier: Apache-2.0
#pragma once
// IEEE's half precision, which files have (float16, F16) and graphs have not.

#include <cmath>
#include <cstdint>

namespace arbalest {

// Exact: a float holds all of them. NaNs stay NaNs.
inline float float_of_half(uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = mantissa ? std::nanf("") : HUGE_VALF;
  } else {
    magnitude = std::ldexp(float(exponent ? mantissa | 1024 : mantissa), (exponent ? exponent : 1) - 25);
  }
  return std::copysign(magnitude, half & 0x8000 ? -1.0f : 1.0f);
}

}  // namespace arbalest
