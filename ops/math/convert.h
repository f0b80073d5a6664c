// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers of one type as another, the same on CPUs and GPUs.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/host_device.h"

namespace arbalest {

// Whole numbers are cut off towards 0; what an integer type cannot hold becomes its nearest number, and NaN 0, where a
// plain conversion is undefined. Integers wrap around. As bool everything but 0 is true.
template <typename To, typename From>
ARBALEST_HOST_DEVICE inline To convert_number(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To kLeast = std::numeric_limits<To>::min(), kMost = std::numeric_limits<To>::max();
    if (x != x) return To(0);
    if (x <= From(kLeast)) return kLeast;
    if (x >= From(kMost)) return kMost;
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// As convert_number(), but whole numbers that an integer type cannot hold become its nearest number as well.
template <typename To, typename From>
ARBALEST_HOST_DEVICE inline To nearest_number(From x) {
  if constexpr (std::is_integral_v<From> && std::is_integral_v<To> && !std::is_same_v<To, bool>) {
    constexpr int64_t kLeast = std::numeric_limits<To>::min(), kMost = std::numeric_limits<To>::max();
    const int64_t whole = int64_t(x);
    return static_cast<To>(whole < kLeast ? kLeast : whole > kMost ? kMost : whole);
  } else {
    return convert_number<To>(x);
  }
}

}  // namespace arbalest
