// SPDX-License-Identifier: Apache-2.0
#include "executor/sweep/sweep_schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "executor/sweep/lane_tuner.h"
#include "executor/sweep/run_jobs.h"

using namespace arbalest;

namespace sweep_schedule_test {
namespace {

// A score that trials with a higher number of `order` have more of, the further they train.
double score_of(const SweepJob& job, const std::vector<int>& order) {
  return double(order[size_t(job.trial)]) + 0.01 * double(job.epochs);
}

struct Outcome {
  std::set<std::tuple<int, int, int, int>> promoted;  // trial, rung, place, of how many
  std::set<std::pair<int, int>> ran;                  // trial and rung
  bool operator==(const Outcome&) const = default;
};

// Carries out a schedule whose jobs end in a random order; at most `lanes` are under way.
Outcome carried_out(SweepSchedule& schedule, const std::vector<int>& order, size_t lanes, unsigned seed) {
  std::mt19937 random(seed);
  Outcome outcome;
  std::vector<SweepJob> under_way;
  while (!schedule.over() || !under_way.empty()) {
    while (under_way.size() < lanes) {
      const auto job = schedule.next();
      if (!job) break;
      CHECK(outcome.ran.emplace(job->trial, job->rung).second);
      if (job->judged > 0) outcome.promoted.emplace(job->trial, job->rung, job->place, job->judged);
      under_way.push_back(*job);
    }
    REQUIRE(!under_way.empty());
    std::swap(under_way[random() % under_way.size()], under_way.back());
    const SweepJob job = under_way.back();
    under_way.pop_back();
    schedule.ended(job, score_of(job, order));
  }
  return outcome;
}

std::vector<int> shuffled(int count, unsigned seed) {
  std::vector<int> order(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) order[size_t(i)] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

}  // namespace

TEST_CASE("sweep: trials of a group are judged by their mean, and train on together") {
  // Three groups of two: the best trial is of the second, and the best mean the third's.
  const std::vector<double> scores = {0.1, 0.2, 0.9, 0.0, 0.6, 0.7};
  for (const size_t lanes : {1, 2, 4}) {
    SweepSchedule schedule(6, HalvingRule{{1, 3}, 3, int(lanes)}, {0, 0, 1, 1, 2, 2});
    std::vector<int> promoted;
    std::deque<SweepJob> running;
    while (!schedule.over()) {
      while (running.size() < lanes && schedule.has_next()) running.push_back(*schedule.next());
      REQUIRE(!running.empty());
      const SweepJob job = running.front();
      running.pop_front();
      if (job.rung == 1) promoted.push_back(job.trial);
      schedule.ended(job, scores[size_t(job.trial)]);
    }
    CHECK(promoted == std::vector<int>{4, 5});
  }
  // The best group has a trial that fails: the next one trains on.
  SweepSchedule schedule(6, HalvingRule{{1, 3}, 3, 2}, {0, 0, 1, 1, 2, 2});
  std::vector<int> promoted;
  while (!schedule.over()) {
    const auto job = schedule.next();
    REQUIRE(job);
    if (job->rung == 1) promoted.push_back(job->trial);
    schedule.ended(*job, job->trial == 5 ? std::nullopt : std::optional(scores[size_t(job->trial)]));
  }
  CHECK(promoted == std::vector<int>{2, 3});
}

TEST_CASE("sweep: without a rule every trial trains once, in order") {
  SweepSchedule schedule(3);
  for (int trial = 0; trial < 3; ++trial) CHECK(schedule.next() == SweepJob{trial});
  CHECK(!schedule.next());
  CHECK(!schedule.over());
  for (const int trial : {2, 0, 1}) schedule.ended({trial}, std::nullopt);
  CHECK(schedule.over());
}

TEST_CASE("sweep: rungs") {
  CHECK(rungs_between(1, 27, 3) == std::vector<int64_t>{1, 3, 9, 27});
  CHECK(rungs_between(1, 30, 4) == std::vector<int64_t>{1, 4, 16, 30});
  CHECK(rungs_between(5, 5, 2) == std::vector<int64_t>{5});
  CHECK(rungs_between(1, INT64_MAX, 1000).back() == INT64_MAX);  // without overflow
  CHECK_THROWS_AS(rungs_between(0, 5, 2), GraphError);
  CHECK_THROWS_AS(rungs_between(6, 5, 2), GraphError);
  CHECK_THROWS_AS(rungs_between(1, 5, 1), GraphError);
}

TEST_CASE("sweep: the decisions of ASHA do not depend on which job ends first, nor on how many really run") {
  for (unsigned order = 0; order < 20; ++order) {
    const std::vector<int> scores = shuffled(27, order);
    const HalvingRule rule{rungs_between(1, 27, 3), 3, 4};
    SweepSchedule first(27, rule);
    const Outcome expected = carried_out(first, scores, 4, 1);
    CHECK(!expected.promoted.empty());
    for (unsigned seed = 2; seed < 6; ++seed) {
      SweepSchedule again(27, rule);
      CHECK(carried_out(again, scores, 1 + seed, seed) == expected);
    }
    // All begin, few go on, and one of the best few trains to the end.
    int begun = 0, ended = 0;
    for (const auto& [trial, rung] : expected.ran) {
      begun += rung == 0;
      ended += rung == 3;
      if (rung == 3) CHECK(scores[size_t(trial)] >= 18);
    }
    CHECK(begun == 27);
    CHECK(ended >= 1);
    CHECK(expected.ran.size() < 27 + 20);
  }
}

TEST_CASE("sweep: with one lane ASHA promotes as the paper says") {
  SweepSchedule schedule(9, HalvingRule{{1, 3, 9}, 3, 1});
  std::vector<SweepJob> jobs;
  while (const auto job = schedule.next()) {
    jobs.push_back(*job);
    schedule.ended(*job, double(job->trial));
  }
  CHECK(schedule.over());
  // One in three of three or more goes on. Each trial is better than all before it, so each is that one.
  std::vector<SweepJob> expected;
  for (int trial = 0; trial < 9; ++trial) {
    expected.push_back({trial, 0, 1});
    if (trial >= 2) expected.push_back({trial, 1, 3});
    if (trial >= 4) expected.push_back({trial, 2, 9});
  }
  CHECK(jobs == expected);
}

TEST_CASE("sweep: failed trials are never promoted, and the best of few still trains to the end") {
  SweepSchedule schedule(2, HalvingRule{{1, 4}, 4, 2});
  const SweepJob one = *schedule.next(), two = *schedule.next();
  schedule.ended(one, std::nullopt);
  CHECK(!schedule.next());
  schedule.ended(two, 0.5);
  CHECK(schedule.next() == SweepJob{1, 1, 4});
  schedule.ended({1, 1, 4}, 0.6);
  CHECK(schedule.over());
  SweepSchedule failing(2, HalvingRule{{1, 4}, 4, 2});
  for (int i = 0; i < 2; ++i) failing.ended(*failing.next(), std::numeric_limits<double>::quiet_NaN());
  CHECK(failing.over());
}

TEST_CASE("sweep: if the best fails later, the next best trains to the end") {
  SweepSchedule schedule(3, HalvingRule{{1, 4}, 4, 3});
  for (int trial = 0; trial < 3; ++trial) schedule.ended(*schedule.next(), double(trial));
  CHECK(schedule.next() == SweepJob{2, 1, 4});
  schedule.ended({2, 1, 4}, std::nullopt);
  CHECK(schedule.next() == SweepJob{1, 1, 4});
  schedule.ended({1, 1, 4}, 5.0);
  CHECK(schedule.over());
}

TEST_CASE("sweep: lanes run jobs at once, and none twice") {
  SweepSchedule schedule(20);
  std::mutex mutex;
  std::set<int> ran;
  std::atomic<int> now{0}, most{0};
  JobLanes lanes(schedule, 4, [&](const SweepJob& job, int) {
    const int here = ++now;
    for (int seen = most; here > seen && !most.compare_exchange_weak(seen, here);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::scoped_lock lock(mutex);
    CHECK(ran.insert(job.trial).second);
    --now;
    return JobEnd{JobEnd::Kind::Judged, 1.0, {}};
  });
  lanes.run({});
  CHECK(ran.size() == 20);
  CHECK(most <= 4);
  CHECK(schedule.over());
}

TEST_CASE("sweep: no more lanes take jobs than are allowed") {
  SweepSchedule schedule(40);
  std::atomic<int> now{0}, most{0}, jobs{0};
  JobLanes* all = nullptr;
  JobLanes lanes(schedule, 4, [&](const SweepJob&, int) {
    const int here = ++now;
    if (jobs < 10) {
      for (int seen = most; here > seen && !most.compare_exchange_weak(seen, here);) {
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (++jobs == 10) all->allow(4);
    --now;
    return JobEnd{JobEnd::Kind::Judged, 1.0, {}};
  });
  all = &lanes;
  lanes.allow(1);
  lanes.run({});
  CHECK(most == 1);
  CHECK(jobs == 40);
}

TEST_CASE("sweep: jobs that lack memory run later, and fewer at once") {
  SweepSchedule schedule(12);
  std::mutex mutex;
  std::set<int> ran;
  int now = 0, least = 100;
  JobLanes lanes(schedule, 6,
                 [&](const SweepJob& job, int) {
                   {
                     const std::scoped_lock lock(mutex);
                     if (now == 2) return JobEnd{JobEnd::Kind::LacksMemory, {}, "two fit"};
                     ++now;
                   }
                   std::this_thread::sleep_for(std::chrono::milliseconds(10));
                   const std::scoped_lock lock(mutex);
                   --now;
                   CHECK(ran.insert(job.trial).second);
                   return JobEnd{JobEnd::Kind::Judged, 1.0, {}};
                 },
                 {[&](int at_once, const std::string& why) {
                    const std::scoped_lock lock(mutex);
                    CHECK(why == "two fit");
                    least = std::min(least, at_once);
                  },
                  [](const SweepJob&, const std::string&) { CHECK(false); }});
  lanes.run({});
  CHECK(ran.size() == 12);
  CHECK(least >= 1);
  CHECK(least <= 2);
  CHECK(schedule.over());
}

TEST_CASE("sweep: a job that no device has the memory for fails, and the others run") {
  for (const int at_once : {1, 3}) {
    SweepSchedule schedule(9);
    std::mutex mutex;
    std::set<int> ran, failed;
    JobLanes lanes(schedule, at_once,
                   [&](const SweepJob& job, int) {
                     if (job.trial % 4 == 0) return JobEnd{JobEnd::Kind::LacksMemory, {}, "none fits"};
                     const std::scoped_lock lock(mutex);
                     CHECK(ran.insert(job.trial).second);
                     return JobEnd{JobEnd::Kind::Judged, 1.0, {}};
                   },
                   {{}, [&](const SweepJob& job, const std::string& why) {
                      const std::scoped_lock lock(mutex);
                      CHECK(why == "none fits");
                      CHECK(failed.insert(job.trial).second);
                    }});
    lanes.run({});
    CHECK(ran.size() == 6);
    CHECK(failed == std::set<int>{0, 4, 8});
    CHECK(schedule.over());
  }
}

TEST_CASE("sweep: a job that was asked to end ends the sweep") {
  SweepSchedule schedule(5);
  std::atomic<int> jobs{0};
  JobLanes lanes(schedule, 2, [&](const SweepJob& job, int) {
    ++jobs;
    return JobEnd{job.trial == 1 ? JobEnd::Kind::Stopped : JobEnd::Kind::Judged, 1.0, {}};
  });
  lanes.run({});  // comes back
  CHECK(!schedule.over());
  CHECK(jobs >= 1);
}

TEST_CASE("sweep: a stop ends lanes that wait for others") {
  SweepSchedule schedule(1);
  std::stop_source stop;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    stop.request_stop();
  });
  JobLanes lanes(schedule, 2, [&](const SweepJob&, int) {
    while (!stop.stop_requested()) std::this_thread::yield();
    return JobEnd{JobEnd::Kind::Stopped, {}, {}};
  });
  lanes.run(stop.get_token());
  later.join();
  CHECK(!schedule.over());
}

TEST_CASE("sweep: lanes are doubled as long as that raises the throughput") {
  const auto found = [](const std::function<double(int)>& rate, int most) {
    LaneTuner tuner(4, most);
    double images = 0;
    for (double seconds = 0; seconds < 60; seconds += 0.1) {
      tuner.look(seconds, int64_t(images), true);
      images += 0.1 * rate(tuner.lanes());
    }
    CHECK(tuner.done());
    return tuner.lanes();
  };
  CHECK(found([](int lanes) { return 1000.0 * lanes; }, 32) == 32);
  CHECK(found([](int) { return 1000.0; }, 32) == 4);
  CHECK(found([](int lanes) { return lanes <= 8 ? 1000.0 * lanes : 7000.0; }, 32) == 8);
  CHECK(found([](int lanes) { return lanes < 32 ? 1000.0 * lanes : 7000.0; }, 32) == 16);  // the last is judged, too
  CHECK(found([](int lanes) { return 1000.0 * lanes; }, 3) == 3);
  // Nothing is decided while some lanes do not train.
  LaneTuner tuner(4, 32);
  for (double seconds = 0; seconds < 20; seconds += 0.5) CHECK(!tuner.look(seconds, int64_t(1e6 * seconds), false));
  CHECK(tuner.lanes() == 4);
}

}  // namespace sweep_schedule_test
