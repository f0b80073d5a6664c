// SPDX-License-Identifier: Apache-2.0
#pragma once
// State that successive plans on the same GPUs share.

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/devices/cuda_poller.h"
#include "executor/devices/device.h"
#include "ops/cuda/cuda_context.h"
#include "ops/replicas/collective_context.h"

namespace arbalest {

struct DeviceCache {
  std::map<int, int64_t> free_bytes;                     // by ordinal, before all else
  std::map<int, std::shared_ptr<CudaContext>> contexts;  // by ordinal
  // By ordinal. Held at first runs of a step, by one lane of any plan at a time: recordings of two would meet in what a
  // library's handle runs aside.
  std::map<int, std::shared_ptr<std::mutex>> recording;
  // The thread that looks at what plans have under way on the GPU, and on those next to it, as long as one runs. Throws
  // RunError if the system refuses it.
  std::shared_ptr<PollingThread> polling_thread(int ordinal) {
    const std::scoped_lock lock(starting);
    std::weak_ptr<PollingThread>& known = polling[ordinal / PollingThread::kDevices];
    std::shared_ptr<PollingThread> thread = known.lock();
    if (!thread) known = thread = std::make_shared<PollingThread>();
    return thread;
  }
  std::map<int, std::weak_ptr<PollingThread>> polling;
  std::mutex starting;  // of a polling thread
  struct Connected {
    std::vector<int> ordinals, ranks;  // of the devices that a lane spans, in a plan's order
    size_t lane = 0;                   // its number among those of collectives
    int era = 0;                       // of the ranks
    auto operator<=>(const Connected&) const = default;
  };
  std::map<Connected, std::shared_ptr<CollectiveContext>> collectives;
};

}  // namespace arbalest
