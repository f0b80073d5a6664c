// SPDX-License-Identifier: Apache-2.0

// When a collective is given up, with a clock of the test's own.

#include "executor/devices/hang_watch.h"

#include <doctest/doctest.h>

using namespace arbalest;
using namespace std::chrono_literals;

namespace hang_watch_test {
namespace {

// Looks every 10 ms, as the thread that watches does.
struct Watching {
  HangWatch watch{20s};
  HangWatch::Time now;
  HangWatch::Look look{.task = 3, .instance = 7, .ready = true};

  // Seconds until the collective is given up; −1: not within `time`.
  double given_up_within(std::chrono::milliseconds time) {
    const auto began = now;
    while (now - began < time) {
      now += 10ms;
      const bool hangs = watch.hangs(look, now);
      look.progress = false;
      if (hangs) return std::chrono::duration<double>(now - began).count();
    }
    return -1;
  }
};

}  // namespace

TEST_CASE("a collective that every device could have started is given up after the limit") {
  Watching watching;
  const double seconds = watching.given_up_within(60s);
  CHECK(seconds > 20);
  CHECK(seconds < 20.1);
}

TEST_CASE("waiting for compute is not hanging: time counts from when all inputs are ready") {
  Watching watching;
  watching.look.ready = false;  // a step of five minutes
  CHECK(watching.given_up_within(300s) == -1);
  watching.look.ready = true;
  CHECK(watching.given_up_within(19s) == -1);
  CHECK(watching.given_up_within(2s) > 0);
}

TEST_CASE("a run that makes progress is not ended") {
  Watching watching;
  for (int i = 0; i < 100; ++i) {
    watching.look.progress = true;  // a long validation at the same time, say
    CHECK(watching.given_up_within(15s) == -1);
  }
  CHECK(watching.given_up_within(21s) > 0);
}

TEST_CASE("every collective has the whole limit") {
  Watching watching;
  for (int i = 0; i < 10; ++i) {
    ++watching.look.instance;
    CHECK(watching.given_up_within(15s) == -1);
  }
  watching.look.task = 4;
  CHECK(watching.given_up_within(15s) == -1);
  CHECK(watching.given_up_within(6s) > 0);
}

TEST_CASE("time in which the process stood still does not count") {
  Watching watching;
  CHECK(watching.given_up_within(1s) == -1);
  watching.now += 1h;
  CHECK(watching.given_up_within(15s) == -1);
  CHECK(watching.given_up_within(6s) > 0);
}

}  // namespace hang_watch_test
