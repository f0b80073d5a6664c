// SPDX-License-Identifier: Apache-2.0

// The clock of a segment by itself: no plan is bound, nothing is trained.

#include "executor/segment/segment_clock.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace segment_clock_test {
namespace {

IterationGroups groups(int64_t size, int64_t complete) {
  return {{.fine = 0, .coarse = 1, .group = size, .period = 10}, complete};
}

// Four epochs of 80 samples: ten iterations of two learners, with batches of 4.
SegmentTimes four_epochs(const std::string& train = "lr = 0.1") {
  TinyNet net;
  net.train = train;
  const Graph graph = tiny(net);
  return {.from = {},
          .learners = 2,
          .iterations = 40,
          .rounds = 10,
          .batch = 4,
          .samples = 80,
          .accumulate = 1,
          .sync = {},
          .validations = groups(10, 4),
          .schedule = LearningRate(*graph.find_op("arbalest.Train")),
          .total_epochs = 4,
          .rate_factor = [](int64_t) { return 1.0; },
          .rate_drops = [](int64_t) { return int64_t{0}; },
          .strategy = {.name = "none"}};
}

}  // namespace

TEST_CASE("segment clock: positions count epochs that have begun, and samples") {
  SegmentTimes times = four_epochs();
  const RunPosition begin = SegmentClock(times).position(0), within = SegmentClock(times).position(5),
                    end = SegmentClock(times).position(10);
  CHECK(begin.epoch == 0);
  CHECK(within.epoch == 1);
  CHECK(within.images == 40);
  CHECK(within.epochs == 0.5);
  CHECK(end.epoch == 1);
  CHECK(end.epochs == 1);

  times.from = {.epoch = 2, .batch = 12, .iteration = 26, .images = 208, .validations = 2};
  times.rounds = 4;  // of the rest of the epoch
  const SegmentClock rest(times);
  CHECK(rest.position(2).epoch == 3);
  CHECK(rest.position(2).iteration == 28);
  CHECK(rest.position(2).epochs == 2.8);
  CHECK(rest.batch_of(0, 1) == 13);
  CHECK(rest.epoch_of(3) == 2);
}

TEST_CASE("segment clock: the learners' batches are each of an epoch's, once") {
  const SegmentClock clock(four_epochs());
  std::set<int64_t> batches;
  for (int64_t tick = 10; tick < 20; ++tick) {
    CHECK(clock.epoch_of(tick) == 1);
    CHECK(clock.ends_epoch(tick) == (tick == 19));
    for (const int64_t learner : {0, 1}) batches.insert(clock.batch_of(tick, learner));
  }
  CHECK(batches.size() == 20);
  CHECK(*batches.rbegin() == 19);
}

TEST_CASE("segment clock: the next segment reads batches again that no update has used") {
  SegmentTimes times = four_epochs();
  times.accumulate = 2;
  const Cursor after = SegmentClock(times).cursor(15);
  CHECK(after.iteration == 14);
  CHECK(after.epoch == 1);
  CHECK(after.batch == 8);
  CHECK(after.images == 14 * 8);
  CHECK(after.validations == 1);
  const StepScalars first = SegmentClock(times).scalars(14, {.updates = 5}), last = SegmentClock(times).scalars(15, {});
  CHECK(!first.update);
  CHECK(first.updates == 5 + 7);
  CHECK(last.update);
  CHECK(last.accumulated == 1);
}

TEST_CASE("segment clock: validations follow epochs, and rates follow validations") {
  SegmentTimes times = four_epochs();
  times.rate_factor = [](int64_t validations) { return validations >= 1 ? 0.5 : 1.0; };
  const SegmentClock clock(times);
  CHECK(clock.validates_after(9));
  CHECK(!clock.validates_after(10));
  CHECK(clock.validated_after(1) == 20);
  CHECK(clock.rate(19) == doctest::Approx(0.1));  // the first validation may still run
  CHECK(clock.rate(20) == doctest::Approx(0.05));
  times.validations->complete = 0;
  CHECK(!SegmentClock(times).validates_after(9));
  times.validations.reset();
  CHECK(!SegmentClock(times).validates());
}

TEST_CASE("segment clock: averaging starts again in the group in which the rate drops") {
  SegmentTimes times = four_epochs("lr = 0.1, schedule = \"step\", step_size = 1, gamma = 0.5");
  times.sync = groups(5, 8);
  times.strategy = {.name = "sma", .alpha = 0.25};
  times.can_restart = true;
  const SegmentClock clock(times);
  const LearnerStart learner{.correction = 0.125, .updates = 100};
  CHECK(clock.scalars(0, learner).correction == 0.125F);
  CHECK(clock.scalars(1, learner).correction == 0);  // one update a group
  CHECK(clock.scalars(5, learner).correction == 0.25F);
  CHECK(clock.scalars(5, learner).restart == 0);
  CHECK(clock.scalars(10, learner).restart == 1);
  CHECK(clock.scalars(15, learner).restart == 0);
  CHECK(clock.scalars(10, learner).updates == 110);
  CHECK(clock.scalars(11, learner).updates == 0);  // the first update of the group left zeros
  CHECK(clock.scalars(19, learner).updates == 8);
  CHECK(clock.averagings(12) == 2);
  CHECK(clock.unaveraged(12) == 2);
  CHECK(clock.unaveraged(15) == 0);
  CHECK(clock.cursor(12).rate_drops == 1);

  times.from = {.epoch = 1, .iteration = 10, .rate_drops = 1};  // the group before has begun with that rate
  CHECK(SegmentClock(times).scalars(0, learner).restart == 0);
  times.can_restart = false;
  CHECK_THROWS_AS(SegmentClock(times).scalars(10, learner), std::logic_error);
}

}  // namespace segment_clock_test
