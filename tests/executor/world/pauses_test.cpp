// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "executor/world/pauses.h"

using namespace arbalest;

namespace pauses_test {

using std::chrono::seconds;

TEST_CASE("a pause counts while it lasts and a moment longer, and shorter ones do not hide it") {
  const auto at = [](int second) { return Pauses::Time(seconds(1000 + second)); };
  Pauses pauses;
  CHECK(pauses.recent(at(0)) == seconds(0));
  pauses.begin(at(0));
  CHECK(pauses.recent(at(19)) == seconds(19));
  pauses.end(at(20));
  CHECK(pauses.recent(at(21)) == seconds(20));
  pauses.begin(at(20));
  pauses.end(at(22));
  CHECK(pauses.recent(at(23)) == seconds(20));
  CHECK(pauses.recent(at(30)) == seconds(0));  // such as when another rank is killed later
  pauses.begin(at(22));
  pauses.end(at(25));
  CHECK(pauses.recent(at(25)) == seconds(3));
}

TEST_CASE("ranks that begin again have not been silent, and work between two pauses is none") {
  const auto at = [](int second) { return Pauses::Time(seconds(1000 + second)); };
  Pauses pauses;
  pauses.begin(at(0));
  pauses.end(at(20));
  CHECK(pauses.recent(at(21)) == seconds(20));
  pauses.forget();
  CHECK(pauses.recent(at(21)) == seconds(0));
  pauses.begin(at(60));  // after a large part was sent for 40 s
  CHECK(pauses.recent(at(61)) == seconds(1));
  pauses.end(at(62));
  CHECK(pauses.recent(at(62)) == seconds(2));
}

}  // namespace pauses_test
