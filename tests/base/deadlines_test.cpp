// SPDX-License-Identifier: Apache-2.0

// Looks are made when they are due, by one thread.

#include "base/time/deadlines.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

using namespace arbalest;
using namespace std::chrono_literals;

namespace deadlines_test {
namespace {

using Time = Timetable::Time;

constexpr Time kBegin{};

// The looks that are due at these times, in order.
std::vector<int64_t> taken(Timetable& table, const std::vector<Time>& times) {
  std::vector<int64_t> ids;
  for (const Time time : times) {
    while (const auto id = table.take(time)) ids.push_back(*id);
  }
  return ids;
}

template <typename Condition>
bool within(std::chrono::milliseconds time, const Condition& condition) {
  const Time until = std::chrono::steady_clock::now() + time;
  while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  return condition();
}

}  // namespace

TEST_CASE("a timetable has looks in the order in which they are due, and again after their intervals") {
  Timetable table;
  CHECK_FALSE(table.next());
  CHECK_FALSE(table.take(kBegin + 1h));
  table.add(1, kBegin + 10s, 10s);
  table.add(2, kBegin + 3s, 3s);
  table.add(3, kBegin + 5s, std::nullopt);
  CHECK(table.next() == kBegin + 3s);
  CHECK(taken(table, {kBegin + 2s}).empty());
  CHECK(taken(table, {kBegin + 3s, kBegin + 5s, kBegin + 6s, kBegin + 9s, kBegin + 10s}) ==
        std::vector<int64_t>{2, 3, 2, 2, 1});
  CHECK(table.next() == kBegin + 12s);
  table.remove(2);
  CHECK(table.next() == kBegin + 20s);
  table.remove(1);
  CHECK_FALSE(table.next());
}

TEST_CASE("a timetable makes up for nothing that a process missed while it stood still") {
  Timetable table;
  table.add(1, kBegin + 1s, 1s);
  table.add(2, kBegin + 2s, 2s);
  CHECK(taken(table, {kBegin + 1h}) == std::vector<int64_t>{1, 2});
  CHECK(table.next() == kBegin + 1h + 1s);
}

TEST_CASE("one thread makes all looks, and none once its handle is gone") {
  std::atomic<int> often = 0, once = 0;
  std::thread::id of_often, of_once;
  {
    const TimedLook first = look_each(2ms, [&, looks = 0]() mutable {  // which keeps what it counts
      of_often = std::this_thread::get_id();
      often = ++looks;
    });
    const TimedLook second = look_after(1ms, [&] {
      of_once = std::this_thread::get_id();
      ++once;
    });
    REQUIRE(first);
    REQUIRE(second);
    CHECK(within(10s, [&] { return often >= 5 && once > 0; }));
  }
  CHECK(once == 1);
  CHECK(of_often == of_once);
  CHECK(of_once != std::this_thread::get_id());
  const int made = often;
  const TimedLook other = look_each(1ms, [&] { ++once; });
  CHECK(within(10s, [&] { return once >= 5; }));
  CHECK(often == made);
}

TEST_CASE("a look that is due late does not hold up one that is added and due earlier") {
  std::atomic<bool> looked = false;
  const TimedLook late = look_after(1h, [] {}), never = look_after(std::chrono::duration<double>(1e300), [] {});
  CHECK(late);
  CHECK(never);
  const TimedLook early = look_after(1ms, [&] { looked = true; });
  CHECK(within(10s, [&] { return looked.load(); }));
}

TEST_CASE("a handle waits for the look that is being made") {
  std::atomic<bool> begun = false, ended = false;
  {
    TimedLook look = look_after(0ms, [&] {
      begun = true;
      std::this_thread::sleep_for(20ms);
      ended = true;
    });
    REQUIRE(within(10s, [&] { return begun.load(); }));
    TimedLook moved = std::move(look);
    CHECK_FALSE(look);  // NOLINT(bugprone-use-after-move): what is moved from looks at nothing
    CHECK(moved);
  }
  CHECK(ended);
  CHECK_FALSE(TimedLook());
}

}  // namespace deadlines_test
