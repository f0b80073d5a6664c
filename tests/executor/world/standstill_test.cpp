// SPDX-License-Identifier: Apache-2.0

// Which rank stands still, from what ranks tell of themselves.

#include <doctest/doctest.h>

#include "executor/world/standstill.h"

using namespace arbalest;

namespace standstill_test {
namespace {

using UnderWay = RankProgress::UnderWay;
using Seconds = Standstill::Seconds;

// Hears of two ranks every two seconds: rank 0 waits, rank 1 is as given.
std::optional<Standstill::Found> after(int seconds, UnderWay under_way, int64_t completed_each, int64_t worked_each) {
  Standstill standstill(Seconds{20});
  Standstill::Time now{};
  for (int s = 0; s <= seconds; s += 2, now += std::chrono::seconds(2)) {
    standstill.hear(0, {UnderWay::Others, 5, 0, "sum, step 5"}, now);
    standstill.hear(1, {under_way, completed_each * s, worked_each * s, "forward, step 5"}, now);
  }
  return standstill.find(2);
}

}  // namespace

TEST_CASE("a rank stands still if it completes nothing and takes no processor time") {
  const auto found = after(22, UnderWay::Device, 0, 0);
  REQUIRE(found.has_value());
  CHECK(found->rank == 1);
  CHECK(found->why == "it stands still at forward, step 5, for 22.0 s");
  CHECK_FALSE(after(20, UnderWay::Device, 0, 0).has_value());            // not for long enough
  CHECK_FALSE(after(60, UnderWay::Device, 1, 0).has_value());            // it completes something
  CHECK_FALSE(after(60, UnderWay::Device, 0, 100'000'000).has_value());  // a tenth of a processor: it computes
  CHECK_FALSE(after(60, UnderWay::Nothing, 0, 0).has_value());           // between two stretches of a run
}

TEST_CASE("the host has longer, and ranks that all wait for each other are found") {
  CHECK_FALSE(after(60, UnderWay::Host, 0, 0).has_value());
  CHECK(after(220, UnderWay::Host, 0, 0)->rank == 1);
  const auto all = after(22, UnderWay::Others, 0, 0);
  REQUIRE(all.has_value());
  CHECK_FALSE(all->rank.has_value());
  CHECK(all->why == "all ranks wait for each other; rank 0 is at sum, step 5, for 22.0 s");
}

TEST_CASE("processes that were stopped themselves, and all together, do not stand still") {
  Standstill standstill(Seconds{20});
  Standstill::Time now{};
  standstill.hear(0, {UnderWay::Device, 5, 0, "forward"}, now);
  standstill.hear(0, {UnderWay::Device, 5, 0, "forward"}, now + std::chrono::hours(1));
  CHECK_FALSE(standstill.find(1).has_value());
  standstill.forget(0);
  CHECK(standstill.place(0).empty());
}

}  // namespace standstill_test
