// SPDX-License-Identifier: Apache-2.0

// The processor time that OpenMP's threads take while they have nothing to do.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "ops/cpu.h"
#include "ops/idle_threads.h"

using namespace arbalest;

namespace idle_threads_test {
namespace {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// The processor time of a parallel region and of five milliseconds of waiting after it.
double cost_of_region() {
  constexpr int kRegions = 40;
  const double start = processor_seconds();
  for (int i = 0; i < kRegions; ++i) {
    parallel_for(64, 1'000'000, [](int64_t, int64_t) {});  // said to be much work: it is spread over the threads
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return (processor_seconds() - start) / kRegions;
}

}  // namespace

TEST_CASE("threads of OpenMP that have nothing to do sleep, without OMP_WAIT_POLICY in the environment" *
          doctest::test_suite("alone")) {
#ifndef _OPENMP
  MESSAGE("SKIP: built without OpenMP");
  return;
#endif
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) {
    CHECK(let_idle_threads_sleep() == nullptr);
    MESSAGE("SKIP: the environment says how OpenMP's threads wait");
    return;
  }
  if (std::thread::hardware_concurrency() < 2) {
    MESSAGE("SKIP: one processor");
    return;
  }
  const auto team = let_idle_threads_sleep();
  CHECK(let_idle_threads_sleep() == team);
  double cost = 0;
  std::thread([&] { cost = cost_of_region(); }).join();  // a team of its own, as each device has one
  // To wake a thread takes some 30 µs; one that spins takes milliseconds.
  CHECK(cost < 0.25e-3 * std::thread::hardware_concurrency());
}

}  // namespace idle_threads_test
