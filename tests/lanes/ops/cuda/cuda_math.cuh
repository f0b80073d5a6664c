// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of ops/cuda/cuda_math.cuh that kernels use which run on lanes.h.

#include "tests/lanes/lanes.h"

namespace arbalest::cuda {

using std::max;
using std::min;

inline constexpr int kThreads = 256;

inline void wait_for_dependencies() {}

inline unsigned char* dynamic_shared() {
  return lanes::shared_memory();
}

}  // namespace arbalest::cuda
