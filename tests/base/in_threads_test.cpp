// SPDX-License-Identifier: Apache-2.0

// Work in threads: every part once, on the caller's thread alone if one is asked for, and the first fault ends it.

#include "base/in_threads.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace arbalest;

TEST_CASE("work in threads does every part once, with fewer threads than parts and with more") {
  for (const size_t threads : {0, 1, 3, 50}) {
    for (const size_t count : {0, 1, 40}) {
      CAPTURE(threads);
      CAPTURE(count);
      std::vector<std::atomic<int>> done(count);
      in_threads(count, threads, [&](size_t part) { ++done[part]; });
      for (const std::atomic<int>& times : done) CHECK(times == 1);
    }
  }
}

TEST_CASE("work by one thread is the caller's, in order") {
  const auto caller = std::this_thread::get_id();
  std::vector<size_t> order;
  in_threads(5, 1, [&](size_t part) {
    CHECK(std::this_thread::get_id() == caller);
    order.push_back(part);
  });
  CHECK(order == std::vector<size_t>{0, 1, 2, 3, 4});
}

TEST_CASE("a fault in a thread is passed on, and what has not begun is left") {
  std::atomic<int> done{0};
  const auto work = [&](size_t part) {
    if (part == 3) throw std::runtime_error("part 3");
    ++done;
  };
  CHECK_THROWS_WITH(in_threads(1000, 1, work), "part 3");
  CHECK(done == 3);
  done = 0;
  std::atomic<bool> thrown{false};
  const auto behind = [&](size_t part) {
    if (part == 3) {
      thrown = true;
      thrown.notify_all();
      throw std::runtime_error("part 3");
    }
    thrown.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++done;
  };
  CHECK_THROWS_WITH(in_threads(1000, 4, behind), "part 3");
  CHECK(done < 999);
}
