// SPDX-License-Identifier: Apache-2.0
#pragma once
// Compares the memory of launches on a lane's branch with that of later launches, to decide which of these wait for
// which.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "executor/devices/device.h"

namespace arbalest {

// Memory that a launch reads and writes, as half-open ranges, some of which may be empty.
struct MemoryUse {
  using Ranges = std::vector<std::pair<const std::byte*, const std::byte*>>;
  Ranges reads, writes;
  bool aside = false;

  // True if the order of the two launches matters.
  bool conflicts_with(const MemoryUse& other) const;
};

MemoryUse memory_use(const Plan& plan, const BoundLaunch& launch);

// BoundLaunch::after for each launch, in their order: kNone for launches aside and for those that need not wait.
// Launches aside run in order, so they wait for each other anyway. At most the 64 latest are not waited for, which
// bounds the time.
std::vector<int32_t> waits_for_aside(const std::vector<MemoryUse>& launches);

}  // namespace arbalest
