// SPDX-License-Identifier: Apache-2.0
#pragma once
// State that successive plans on the same GPUs share.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "executor/devices/device.h"
#include "ops/cuda/cuda_context.h"
#include "ops/replicas/collective_context.h"

namespace arbalest {

struct DeviceCache {
  std::map<int, int64_t> free_bytes;                     // by ordinal, before all else
  std::map<int, std::shared_ptr<CudaContext>> contexts;  // by ordinal
  // By ordinals, in a plan's order, and by the number of the lane among those of collectives.
  std::map<std::pair<std::vector<int>, size_t>, std::shared_ptr<CollectiveContext>> collectives;
};

}  // namespace arbalest
