// SPDX-License-Identifier: Apache-2.0

// Kernels on CPU devices that compute for ever are found, and those that only take long are not.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <tuple>

#include "executor/run/kernel_watch.h"
#include "executor/world/agreement.h"
#include "executor/world/ranks.h"
#include "tests/executor/run/passing_device.h"
#include "tests/executor/run/scheduler_harness.h"
#include "tests/executor/world/free_port.h"

using namespace arbalest;
using namespace arbalest::test;

namespace kernel_watch_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Whether a launch that has taken so many seconds is late, after one that took `before`.
bool late(double seconds, double before = 0, bool first = false) {
  KernelWatch watch(20);
  const auto at = [&](int64_t begun, double worked) {
    return watch.look({.launch = 3, .begun = begun, .worked = int64_t(worked * double(kSecond)), .first = first});
  };
  CHECK_FALSE(at(1, 5).has_value());
  CHECK_FALSE(at(1, 5 + before).has_value());
  CHECK_FALSE(at(2, 5 + before).has_value());
  const auto found = at(2, 5 + before + seconds);
  if (found) CHECK(found->taken == doctest::Approx(seconds));
  if (found) CHECK(found->most == doctest::Approx(std::max(first ? 1800.0 : 200.0, 10 * before)));
  return found.has_value();
}

// Says that its first kernel goes on for ever.
struct Computing final : PassingDevice {
  Computing(std::unique_ptr<Device> inner, std::atomic<int64_t>& looks)
      : PassingDevice(std::move(inner)), looks(looks) {}

  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    for (const BoundTask& task : tasks) {
      if (!launch && !task.variants.empty() && !task.variants[0].launches.empty()) {
        launch = &task.variants[0].launches[0];
        at = task.id;
      }
    }
    PassingDevice::start(plan, tasks, sink, trace);
  }
  Executing executing() const override { return {at, ended ? nullptr : launch, 1}; }
  void abort() override { ended = true; }
  int64_t worked() const override { return ++looks * kSecond; }

  std::atomic<int64_t>& looks;
  const BoundLaunch* launch = nullptr;
  TaskId at = kNone;
  std::atomic<bool> ended{false};
};

}  // namespace

TEST_CASE("a kernel computes for ever if it takes ten times as long as it may, and as it ever took") {
  CHECK_FALSE(late(199));
  CHECK(late(201));
  CHECK_FALSE(late(499, 50));
  CHECK(late(501, 50));
  CHECK_FALSE(late(1799, 0, true));  // nothing is known of it
  CHECK(late(1801, 0, true));
  // The first time, by the slowest of other launches: 50 s for 100 units of work.
  const auto late_at_first = [](double seconds, double work, double slowest = 50) {
    KernelWatch watch(20);
    for (const auto& [launch, took, units] : {std::tuple{1, slowest, 100.0}, {2, slowest, 500.0}, {3, 0.9, 1e-3}}) {
      watch.look({.launch = launch, .begun = launch, .worked = 0, .work = units});
      watch.look({.launch = launch, .begun = launch, .worked = int64_t(took * double(kSecond)), .work = units});
    }
    watch.look({.launch = 4, .begun = 4, .worked = 0, .first = true, .work = work});
    return watch
        .look({.launch = 4, .begun = 4, .worked = int64_t(seconds * double(kSecond)), .first = true, .work = work})
        .has_value();
  };
  CHECK_FALSE(late_at_first(199, 1));
  CHECK(late_at_first(201, 1));
  CHECK_FALSE(late_at_first(2499, 500));
  CHECK(late_at_first(2501, 500));
  CHECK_FALSE(late_at_first(1799, 0));  // its work is not known
  CHECK(late_at_first(1801, 0));
  CHECK_FALSE(late_at_first(1799, 1, 0.9));  // all were too short to measure
  CHECK(late_at_first(1801, 1, 0.9));
  CHECK(late_at_first(201, 1, 1.1));
  KernelWatch idle(20);
  CHECK_FALSE(idle.look({.launch = -1, .worked = 0}).has_value());
  CHECK_FALSE(idle.look({.launch = -1, .worked = 9000 * kSecond}).has_value());
}

TEST_CASE("a rank whose kernel computes for ever ends with an error that names it") {
  std::atomic<int64_t> looks{0};
  Harness harness(epochs(on_cpus(), 100000), true, [&](std::unique_ptr<Device> device, CallWatch&) {
    return std::make_unique<Computing>(std::move(device), looks);
  });
  WorldSettings world;
  world.size = 2;
  world.host = "127.0.0.1";
  world.port = free_port();
  std::promise<void> over;
  auto other = std::async(std::launch::async, [&, world]() mutable {
    world.rank = 1;
    Ranks ranks(world);
    largest_of(&ranks, 0);  // as at the beginning of a run
    over.get_future().wait();
  });
  SchedulerOptions options;
  options.ranks = std::make_shared<Ranks>(world);
  options.rest = [] { return std::optional<int64_t>(); };
  options.standstill_seconds = 0.5;
  const std::string message = harness.run(options);
  over.set_value();
  other.get();
  CHECK_MESSAGE(message.find("node '") != message.npos, message);
  CHECK_MESSAGE(message.find(" s at most: if it may take so long, raise --device-timeout") != message.npos, message);
}

}  // namespace kernel_watch_test
