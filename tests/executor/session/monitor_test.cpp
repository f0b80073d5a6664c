// SPDX-License-Identifier: Apache-2.0

// The rate that progress tells, if reports come close together.

#include "executor/session/monitor.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace monitor_test {
namespace {

struct Watched {
  Watched() : monitor(prepared.program, {}, story) { monitor.begin(); }

  // So many images in all are trained.
  const RunProgress& report(int64_t images, bool ends_epoch = false) {
    monitor.report({.at = {1, images / 8, images, double(images) / 96},
                    .ends_epoch = ends_epoch,
                    .learning_rate = 0.1,
                    .sums = {8, 16, 4}});
    return story.reports.back();
  }

  const SessionOptions options = on_cpus();
  const Prepared prepared = prepare(tiny({}), options);
  Recorder story;
  Monitor monitor;
};

void wait(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace

TEST_CASE("monitor: the rate is steady where the end of an epoch follows a report at once") {
  Watched run;
  wait(300);
  const RunProgress first = run.report(800);
  CHECK(first.images_per_second == doctest::Approx(800 / first.seconds));
  const RunProgress end = run.report(808, true);
  CHECK(end.images_per_second == doctest::Approx(808 / end.seconds));
  CHECK(run.story.epochs.back().images_per_second == doctest::Approx(16 / end.seconds));  // exactly the epoch's
  wait(600);
  const RunProgress next = run.report(2000);
  CHECK(next.images_per_second == doctest::Approx((2000 - 800) / (next.seconds - first.seconds)));
  wait(600);
  const RunProgress after = run.report(4000);
  CHECK(after.images_per_second == doctest::Approx((4000 - 808) / (after.seconds - end.seconds)));
}

TEST_CASE("monitor: an undefined metric is no verdict, neither for patience nor for the rate") {
  const SessionOptions options = on_cpus();
  const Prepared prepared = prepare(tiny({}), options);
  Recorder story;
  ValidationRules rules;
  rules.patience = rules.plateau = 2;
  Monitor monitor(prepared.program, rules, story);
  monitor.begin();
  const size_t metrics = prepared.program.find(LoopRole::Validate)->metrics.size();
  const auto validated = [&](double value) {
    Measurement measured{10, std::vector<double>(metrics, value), 0, std::vector<bool>(metrics, std::isnan(value))};
    return monitor.validated({1, 8, 8, 1}, measured);
  };
  CHECK(validated(0.5).best);
  for (int i = 0; i < 5; ++i) CHECK_FALSE(validated(std::nan("")).stop);
  CHECK(monitor.rate_factor(6) == 1);
  CHECK_FALSE(validated(0.5).stop);
  CHECK(validated(0.5).stop);
  CHECK(monitor.rate_factor(8) < 1);
}

TEST_CASE("monitor: before any update the rate is not blamed") {
  Watched run;
  const auto fault = [&](int64_t iteration) {
    try {
      run.monitor.report(
          {.at = {1, iteration, 8 * iteration, 0.1}, .learning_rate = 0.1, .sums = {8, std::nan(""), 4}});
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(
      fault(1).ends_with("after iteration 1 and before any update, so that the learning rate has no part in it; "
                         "--find-nan names the value"));
  CHECK(fault(2).ends_with("after iteration 2; try a lower learning rate (now 0.1)"));
}

TEST_CASE("monitor: a restored run tells the rate since the state's last report, not since one of its own") {
  Watched run;
  run.report(8);
  wait(100);
  run.report(800);
  run.monitor.restore([&] {
    MonitorState state = run.monitor.state();
    state.last_images = 1600;
    return state;
  }());
  wait(100);
  const double since = run.story.reports.back().seconds;
  const RunProgress& next = run.report(2400);
  CHECK(next.images_per_second == doctest::Approx(800 / (next.seconds - since)));
}

TEST_CASE("monitor: after a rollback the rate is of what has been trained since") {
  Watched run;
  wait(20);
  run.report(800);
  const MonitorState checkpoint = run.monitor.state();
  wait(200);
  run.report(8000);
  const MonitorState from = run.monitor.state();
  run.monitor.restore(checkpoint);
  run.monitor.roll_back(from, 0.5);
  wait(100);
  const RunProgress& next = run.report(1600);
  CHECK(next.images_per_second == doctest::Approx(800 / (next.seconds - from.seconds)));
}

}  // namespace monitor_test
