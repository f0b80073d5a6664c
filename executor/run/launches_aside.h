#pragma once
// What launches on a lane's branch share with the launches behind them, and so who waits for whom.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "executor/devices/device.h"

namespace arbalest {

// Memory that a launch reads and writes, as half-open ranges; an empty one is nothing.
struct MemoryUse {
  using Ranges = std::vector<std::pair<const std::byte*, const std::byte*>>;
  Ranges reads, writes;
  bool aside = false;

  // Whether the order of the two matters.
  bool conflicts_with(const MemoryUse& other) const;
};

MemoryUse memory_use(const Plan& plan, const BoundLaunch& launch);

// For each launch, in their order, BoundLaunch::after: kNone for those aside and for those that need not wait. Launches
// aside wait for each other, being in order themselves. The 64 latest at most are not waited for, which bounds the
// time.
std::vector<int32_t> waits_for_aside(const std::vector<MemoryUse>& launches);

}  // namespace arbalest
