// SPDX-License-Identifier: Apache-2.0

// Which rank stands still, from what ranks tell of themselves.

#include <doctest/doctest.h>

#include <cmath>

#include "executor/session/session.h"
#include "executor/world/standstill.h"

using namespace arbalest;

namespace standstill_test {
namespace {

using UnderWay = RankProgress::UnderWay;
using Seconds = Standstill::Seconds;

RankProgress at(UnderWay under_way, int64_t completed = 0, int64_t worked = 0, double limit = 20) {
  return {under_way, limit, completed, worked, under_way == UnderWay::Others ? "sum, step 5" : "forward, step 5"};
}

// Hears of two ranks every two seconds: rank 0 waits, rank 1 is as given.
std::optional<Standstill::Found> after(int seconds, UnderWay under_way, int64_t completed_each = 0,
                                       int64_t worked_each = 0, double limit = 20) {
  Standstill standstill;
  Standstill::Time now{};
  for (int s = 0; s <= seconds; s += 2, now += std::chrono::seconds(2)) {
    standstill.hear(0, at(UnderWay::Others, 5), now);
    standstill.hear(1, at(under_way, completed_each * s, worked_each * s, limit), now);
  }
  return standstill.find(2);
}

}  // namespace

TEST_CASE("a rank stands still if it completes nothing and takes no processor time") {
  const auto found = after(22, UnderWay::Own);
  REQUIRE(found.has_value());
  CHECK(found->rank == 1);
  CHECK(found->why == "it stands still at forward, step 5, for 22.0 s");
  CHECK_FALSE(after(20, UnderWay::Own).has_value());                  // not for long enough
  CHECK_FALSE(after(60, UnderWay::Own, 1).has_value());               // it completes something
  CHECK_FALSE(after(60, UnderWay::Own, 0, 100'000'000).has_value());  // a tenth of a processor: it computes
  CHECK_FALSE(after(60, UnderWay::Nothing).has_value());              // between two stretches of a run
  CHECK_FALSE(after(60, UnderWay::Own, 0, 0, 200).has_value());       // it has longer
  CHECK(after(220, UnderWay::Own, 0, 0, 200)->rank == 1);
}

TEST_CASE("a host's task has longer than a device's, and than a read") {
  ExecutionOptions options;
  CHECK(host_patience(options) == 200);
  options.read_timeout = 600;
  CHECK(host_patience(options) == 1200);
  options.read_timeout = 0;  // no limit
  CHECK(std::isinf(host_patience(options)));
}

TEST_CASE("ranks with GPUs may wait for each other as long as one GPU may take, and longer for large sums") {
  CHECK(limit_of_sums(20, 0) == 20);
  CHECK(limit_of_sums(20, 250'000'000) == 30);
  CHECK(limit_of_sums(600, 25'000'000) == 601);
}

TEST_CASE("ranks that all wait for each other are found") {
  const auto all = after(22, UnderWay::Others);
  REQUIRE(all.has_value());
  CHECK_FALSE(all->rank.has_value());
  CHECK(all->why ==
        "all ranks wait for each other; rank 0 is at sum, step 5, for 22.0 s; rank 1 is at sum, step 5, for 22.0 s");
}

TEST_CASE("ranks that all wait for each other are found whatever their threads take, after ten times as long") {
  // A thread that looks for a lock all the time, on a busy processor.
  CHECK_FALSE(after(200, UnderWay::Others, 0, 100'000'000).has_value());
  const auto found = after(204, UnderWay::Others, 0, 100'000'000);
  REQUIRE(found.has_value());
  CHECK_FALSE(found->rank.has_value());
  CHECK_FALSE(after(400, UnderWay::Others, 1, 100'000'000).has_value());
  CHECK_FALSE(after(400, UnderWay::Own, 0, 100'000'000).has_value());  // it computes
}

TEST_CASE("a rank that waits for others works only as much as sending and receiving take") {
  CHECK_FALSE(after(60, UnderWay::Others, 0, 100'000'000).has_value());  // a tenth of a processor: it receives
  const auto looks = after(22, UnderWay::Others, 0, 900'000'000);        // all the time
  REQUIRE(looks.has_value());
  CHECK(looks->why.find("all ranks wait for each other") == 0);
  CHECK_FALSE(after(60, UnderWay::Own, 0, 900'000'000).has_value());
}

TEST_CASE("what a rank owes is what the others wait for, and a rank's last place says when it was told") {
  Standstill standstill;
  Standstill::Time now{};
  for (int s = 0; s <= 4; s += 2, now += std::chrono::seconds(2)) {
    for (const int rank : {0, 3}) {
      if (rank == 0 || s > 0) standstill.hear(rank, at(UnderWay::Others), now);
    }
    standstill.hear(1, at(UnderWay::Own), now);
    standstill.hear(2, at(UnderWay::Nothing), now);
  }
  CHECK(standstill.owed(1) == "sum, step 5, to ranks 0, 3, for 4.0 s");
  for (const int rank : {0, 2, 3, 7}) CHECK(standstill.owed(rank) == "");
  CHECK(standstill.last_place(1, now) == "2.0 s before, it was at forward, step 5");
  CHECK(standstill.last_place(7, now) == "");
  for (int rank = 4; rank < 20; ++rank) standstill.hear(rank, at(UnderWay::Others), now);
  CHECK(standstill.owed(1) == "sum, step 5, to ranks 0, 3, 4, 5, 6, 7, 8, 9 and 10 more, for 4.0 s");
}

TEST_CASE("time before a rest, during it, and at another kind of work does not count") {
  for (const UnderWay before : {UnderWay::Nothing, UnderWay::Others}) {
    Standstill standstill;
    Standstill::Time now{};
    for (int s = 0; s < 60; s += 2) standstill.hear(0, at(before), now += std::chrono::seconds(2));
    standstill.hear(0, at(UnderWay::Own), now += std::chrono::seconds(2));
    CHECK_FALSE(standstill.find(2).has_value());
  }
}

TEST_CASE("processes that were stopped themselves, and all together, do not stand still") {
  Standstill standstill;
  Standstill::Time now{};
  standstill.hear(0, at(UnderWay::Own), now);
  standstill.hear(0, at(UnderWay::Own), now + std::chrono::hours(1));
  CHECK_FALSE(standstill.find(1).has_value());
  standstill.forget(0);
  CHECK(standstill.place(0).empty());
}

}  // namespace standstill_test
