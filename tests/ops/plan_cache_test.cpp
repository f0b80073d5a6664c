// SPDX-License-Identifier: Apache-2.0

// Plans that threads share: each made once, several at a time, and again after a failure.

#include "ops/cuda/plan_cache.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace arbalest;

TEST_CASE("a plan is made once, for all threads that ask for it") {
  PlanCache<int> cache;
  std::atomic<int> made{0};
  const auto make = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return std::make_shared<const int>(++made);
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { CHECK(*cache.find("a", make) == 1); });
  threads.clear();
  CHECK(made == 1);
  CHECK(*cache.find("b", make) == 2);
}

TEST_CASE("that there is no plan is known too, and a failure is not") {
  PlanCache<int> cache;
  int asked = 0;
  const auto none = [&] {
    ++asked;
    return std::shared_ptr<const int>();
  };
  CHECK(cache.find("a", none) == nullptr);
  CHECK(cache.find("a", none) == nullptr);
  CHECK(asked == 1);
  const auto fail = []() -> std::shared_ptr<const int> { throw std::runtime_error("no memory"); };
  CHECK_THROWS_WITH(cache.find("b", fail), "no memory");
  CHECK(*cache.find("b", [] { return std::make_shared<const int>(7); }) == 7);
}

TEST_CASE("plans of different keys are made at the same time") {
  PlanCache<int> cache;
  std::counting_semaphore<2> here(0), there(0);
  const auto meet = [](std::counting_semaphore<2>& mine, std::counting_semaphore<2>& other) {
    mine.release();
    CHECK(other.try_acquire_for(std::chrono::seconds(20)));
    return std::make_shared<const int>(0);
  };
  const std::jthread beside([&] { cache.find("a", [&] { return meet(here, there); }); });
  cache.find("b", [&] { return meet(there, here); });
}
