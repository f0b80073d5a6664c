// SPDX-License-Identifier: Apache-2.0

// The rules by which --learners auto measures, goes on and ends.

#include "executor/session/learner_tuner.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace arbalest;

namespace learner_tuner_test {
namespace {

// Reports of a run whose throughput the test sets.
class Feed {
 public:
  explicit Feed(const LearnerTuner::Options& options = {}) : tuner(options) {}

  std::optional<LearnerTuner::Decision> report(double images_per_second, double after = 0.1) {
    seconds_ += after;
    images_ += int64_t(images_per_second * after + 0.5);
    return tuner.observe(seconds_, images_);
  }

  // Until a decision is made; `reports` says how many it took.
  LearnerTuner::Decision decision(double images_per_second, int most = 100) {
    for (reports = 1; reports <= most; ++reports) {
      if (const auto made = report(images_per_second)) return *made;
    }
    FAIL("no decision");
    return {};
  }

  // Warms up, then measures windows of these throughputs; the decision, if there is one by then.
  std::optional<LearnerTuner::Decision> windows(const std::vector<double>& throughputs) {
    for (int i = 0; i < 4; ++i) REQUIRE_FALSE(report(1000));
    std::optional<LearnerTuner::Decision> made;
    for (const double throughput : throughputs) {
      REQUIRE_FALSE(made);
      made = report(throughput, 1.0);
    }
    return made;
  }

  LearnerTuner tuner;
  int reports = 0;

 private:
  double seconds_ = 0;
  int64_t images_ = 0;
};

}  // namespace

TEST_CASE("what is slow or fast at the beginning does not count") {
  Feed feed;
  // By reports: four are skipped, however long they take.
  for (int i = 0; i < 4; ++i) CHECK_FALSE(feed.report(1e6, 10));
  CHECK_FALSE(feed.report(500, 1));
  const auto decision = feed.report(500, 1);
  REQUIRE(decision);
  CHECK(decision->images_per_second == doctest::Approx(500));

  // By time: 0.3 s are skipped, however many reports they have.
  Feed often;
  for (int i = 0; i < 30; ++i) CHECK_FALSE(often.report(1e6, 0.01));
  CHECK(often.decision(500).images_per_second == doctest::Approx(500).epsilon(0.01));
}

TEST_CASE("a window is a quarter of a second or longer") {
  Feed feed;
  int reports = 0;
  std::optional<LearnerTuner::Decision> decision;
  while (!decision && reports < 1000) {
    decision = feed.report(800, 0.02);
    ++reports;
  }
  REQUIRE(decision);
  // 0.3 s of warm-up from the first report on, then two windows of 13 reports, as 12 take 0.24 s.
  CHECK(reports >= 16 + 2 * 13 - 1);
  CHECK(reports <= 16 + 2 * 13 + 1);
}

TEST_CASE("two windows in a row that differ by 4 % or less are steady, and their mean counts") {
  Feed steady;
  const auto decision = steady.windows({1000, 1040});
  REQUIRE(decision);
  CHECK(decision->images_per_second == doctest::Approx(1020));
  CHECK_FALSE(Feed().windows({1000, 1050}));
  CHECK_FALSE(Feed().windows({1050, 1000}));
  // Not any two: the latest.
  CHECK_FALSE(Feed().windows({1000, 1100, 1000}));
  const auto later = Feed().windows({1000, 1100, 1100});
  REQUIRE(later);
  CHECK(later->images_per_second == doctest::Approx(1100));
}

TEST_CASE("of six windows that are never steady the median counts") {
  CHECK_FALSE(Feed().windows({100, 300, 200, 400, 250}));
  const auto decision = Feed().windows({100, 300, 200, 400, 250, 600});
  REQUIRE(decision);
  CHECK(decision->images_per_second ==
        doctest::Approx(300));  // of 100 200 250 300 400 600, the upper of the middle two
}

TEST_CASE("learners double while that gains 10 %, and the smaller number stays where it gains less") {
  Feed feed;
  LearnerTuner::Decision decision = feed.decision(1000);
  CHECK(decision.measured == 1);
  CHECK(decision.next == 2);
  CHECK(feed.tuner.learners() == 2);
  CHECK_FALSE(feed.tuner.done());

  decision = feed.decision(1110);
  CHECK(decision.measured == 2);
  CHECK(decision.next == 4);
  CHECK(decision.reason == "2 learners gain 11.0 % over 1: try 4");

  decision = feed.decision(1200);  // 8.1 %, though 20 % over one
  CHECK(decision.measured == 4);
  CHECK(decision.next == 2);
  CHECK(decision.reason == "4 learners gain 8.1 % over 2, less than 10 %: back to 2");
  CHECK(feed.tuner.learners() == 2);
  CHECK(feed.tuner.done());
  for (int i = 0; i < 50; ++i) CHECK_FALSE(feed.report(5000, 1));
}

TEST_CASE("each number of learners is warmed up and measured anew") {
  Feed feed;
  feed.decision(1000);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(feed.report(1e6, 10));
  CHECK(feed.decision(2000).images_per_second == doctest::Approx(2000));
}

TEST_CASE("more learners than the limit are not tried") {
  for (const int32_t most : {4, 7}) {
    Feed feed({.most_learners = most});
    CHECK(feed.decision(1000).next == 2);
    CHECK(feed.decision(2000).next == 4);
    const LearnerTuner::Decision last = feed.decision(4000);
    CHECK(last.next == 4);
    CHECK(last.reason == "4 learners gain 100.0 % over 2, the most that are tried");
    CHECK(feed.tuner.done());
    CHECK(feed.tuner.learners() == 4);
  }
  Feed alone({.most_learners = 1});
  CHECK(alone.decision(1000).reason == "measured 1 learner, the most that are tried");
  CHECK(alone.tuner.done());
}

TEST_CASE("where learners cannot be had, it is the number before") {
  Feed feed;
  feed.decision(1000);
  feed.decision(2000);
  REQUIRE(feed.tuner.learners() == 4);
  const LearnerTuner::Decision decision = feed.tuner.cannot("not enough memory");
  CHECK(decision.measured == 4);
  CHECK(decision.next == 2);
  CHECK(decision.images_per_second == 0);
  CHECK(decision.reason == "4 learners: not enough memory: back to 2");
  CHECK(feed.tuner.learners() == 2);
  CHECK(feed.tuner.done());
  for (int i = 0; i < 50; ++i) CHECK_FALSE(feed.report(5000, 1));
}

}  // namespace learner_tuner_test
