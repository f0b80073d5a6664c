// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers for kernels on the CPU.

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

namespace arbalest::lanes {

// Whole numbers from −4 to 4, whose sums of products floats hold exactly. The same for the same seed.
inline std::vector<__nv_bfloat16> numbers(size_t count, uint32_t seed) {
  std::vector<__nv_bfloat16> made(count);
  for (__nv_bfloat16& each : made) {
    each = __float2bfloat16(float(int((seed = seed * 1664525 + 1013904223) >> 16) % 9 - 4));
  }
  return made;
}

}  // namespace arbalest::lanes
