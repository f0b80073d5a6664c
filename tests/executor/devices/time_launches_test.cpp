// SPDX-License-Identifier: Apache-2.0

// How long kernels take on a CPU device, for profiles.

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "executor/devices/device.h"

using namespace arbalest;

namespace time_launches_test {

TEST_CASE("kernels whose first passes are slow are timed by those that follow") {
  const auto device = make_cpu_device(0, 1, make_cpu_progress(0));
  constexpr int kSlow = 8;  // a spinning thread's core is shared in about as many passes
  constexpr std::chrono::milliseconds kTick{4};
  int runs = 0;
  const auto kernel = make_kernel([&](const KernelContext&) {
    if (runs++ < kSlow) std::this_thread::sleep_for(kTick);
  });
  const Node node;
  BoundLaunch launch;
  launch.kernel = kernel.get();
  launch.node = &node;
  CHECK(device->time_launches(LaneId{}, {launch}).front() < kTick / std::chrono::nanoseconds(1));
  CHECK(runs > 2 * kSlow);
}

TEST_CASE("kernels that take long are timed few times") {
  const auto device = make_cpu_device(0, 1, make_cpu_progress(0));
  int runs = 0;
  const auto kernel = make_kernel([&](const KernelContext&) {
    ++runs;
    std::this_thread::sleep_for(std::chrono::milliseconds(160));
  });
  const Node node;
  BoundLaunch launch;
  launch.kernel = kernel.get();
  launch.node = &node;
  CHECK(device->time_launches(LaneId{}, {launch}).front() >= 160'000'000);
  CHECK(runs == 1 + 3);
}

}  // namespace time_launches_test
