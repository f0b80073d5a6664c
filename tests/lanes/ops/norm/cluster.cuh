// SPDX-License-Identifier: Apache-2.0
#pragma once
// ops/norm/cluster.cuh on lanes.h.

#include "tests/lanes/lanes.h"

namespace arbalest::cuda {

using lanes::arrive_in_cluster;
using lanes::wait_for_cluster;

inline float2 load_of_block(const float2* own, int rank) {
  const auto place = reinterpret_cast<const unsigned char*>(own) - lanes::shared_memory();
  return *reinterpret_cast<const float2*>(lanes::shared_memory_of(rank) + place);
}

}  // namespace arbalest::cuda
