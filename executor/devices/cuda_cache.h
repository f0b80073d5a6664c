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
  std::map<int, int64_t> free_bytes;                                           // by ordinal, before all else
  std::map<int, std::shared_ptr<CudaContext>> contexts;                        // by ordinal
  std::map<std::vector<int>, std::shared_ptr<CollectiveContext>> collectives;  // by ordinals, in a plan's order
};

}  // namespace arbalest
