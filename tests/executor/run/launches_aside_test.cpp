// SPDX-License-Identifier: Apache-2.0

// Who waits for launches on a lane's branch, against brute force.

#include "executor/run/launches_aside.h"

#include <doctest/doctest.h>

#include <random>

using namespace arbalest;

namespace launches_aside_test {
namespace {

std::byte memory[64];

MemoryUse use(bool aside, std::vector<std::pair<int, int>> reads, std::vector<std::pair<int, int>> writes) {
  MemoryUse result;
  result.aside = aside;
  for (const auto& [begin, end] : reads) result.reads.emplace_back(memory + begin, memory + end);
  for (const auto& [begin, end] : writes) result.writes.emplace_back(memory + begin, memory + end);
  return result;
}

}  // namespace

TEST_CASE("a launch waits for one aside where they share memory that one of them writes") {
  const MemoryUse aside = use(true, {{0, 4}}, {{8, 12}});
  const auto waits = [&](const MemoryUse& launch) { return waits_for_aside({aside, launch}).back() == 0; };
  CHECK(waits(use(false, {{11, 14}}, {})));         // reads what is written there
  CHECK(waits(use(false, {}, {{3, 5}})));           // writes what is read there
  CHECK(waits(use(false, {}, {{10, 11}})));         // writes what is written there
  CHECK(!waits(use(false, {{0, 4}}, {})));          // both read it
  CHECK(!waits(use(false, {{4, 8}}, {{12, 20}})));  // side by side
  CHECK(!waits(use(false, {{9, 9}}, {{1, 1}})));    // empty
}

TEST_CASE("a launch writes where it works") {
  Plan plan;
  plan.graphs.emplace_back();
  plan.launches.emplace_back();
  const std::unique_ptr<Kernel> kernel = make_kernel([](const KernelContext&) {}, 16);
  BoundLaunch launch;
  launch.launch = 0;
  launch.kernel = kernel.get();
  launch.context.workspace = memory + 8;
  CHECK(memory_use(plan, launch).conflicts_with(use(true, {{20, 30}}, {})));
  CHECK_FALSE(memory_use(plan, launch).conflicts_with(use(true, {{24, 30}}, {})));
  launch.context.workspace = nullptr;
  CHECK_FALSE(memory_use(plan, launch).conflicts_with(use(true, {{0, 64}}, {})));
}

TEST_CASE("whatever is aside, each conflict is waited for by then, and nothing else is but what is old") {
  std::mt19937 random(7);
  const auto draw = [&](int below) { return int(random() % unsigned(below)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<MemoryUse> launches;
    const int share = 1 + draw(9), width = 1 + draw(3);
    for (int i = 0; i < 150; ++i) {
      const int from = draw(60), to = draw(60);
      launches.push_back(use(draw(10) < share, {{from, from + width}}, {{to, to + width}}));
    }
    const std::vector<int32_t> waits = waits_for_aside(launches);
    int32_t waited = kNone;  // the latest aside that has been waited for: those before it have ended as well
    for (int32_t i = 0; i < int32_t(launches.size()); ++i) {
      CAPTURE(i);
      if (launches[size_t(i)].aside) {
        CHECK(waits[size_t(i)] == kNone);
        continue;
      }
      const int32_t before = waited;
      waited = std::max(waited, waits[size_t(i)]);
      int32_t latest = kNone;  // conflict that has not been waited for
      int64_t pending = 0;
      for (int32_t j = before + 1; j < i; ++j) {
        if (!launches[size_t(j)].aside) continue;
        ++pending;
        if (launches[size_t(i)].conflicts_with(launches[size_t(j)])) latest = j;
      }
      CHECK(latest <= waited);
      if (waits[size_t(i)] == kNone) continue;
      CHECK(launches[size_t(waits[size_t(i)])].aside);
      CHECK((waits[size_t(i)] == latest || pending > 64));
    }
  }
}

}  // namespace launches_aside_test
