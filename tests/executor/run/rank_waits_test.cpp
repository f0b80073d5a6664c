// SPDX-License-Identifier: Apache-2.0

// A rank knows since when it waits for others, and tells when it owes something itself.

#include "executor/run/rank_waits.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>

#include "executor/world/agreement.h"
#include "executor/world/ranks.h"
#include "tests/executor/plan/random_plan.h"
#include "tests/executor/run/passing_device.h"
#include "tests/executor/run/scheduler_harness.h"
#include "tests/executor/world/free_port.h"

using namespace arbalest;
using namespace arbalest::test;

namespace rank_waits_test {
namespace {

using std::chrono::milliseconds;

// Says after two seconds that it executes a task.
struct Late final : PassingDevice {
  Late(std::unique_ptr<Device> inner, const std::atomic<int32_t>& task) : PassingDevice(std::move(inner)), task(task) {}

  Executing executing() const override {
    const bool now = std::chrono::steady_clock::now() - begun > std::chrono::seconds(2);
    return {TaskId(now ? task.load() : int32_t(kNone)), nullptr, 0};
  }

  const std::atomic<int32_t>& task;
  const RankWaits::Time begun = std::chrono::steady_clock::now();
};

}  // namespace

TEST_CASE("a rank waits for others once it has all of its own, since the first look that found so") {
  Plan plan = empty_plan(4);
  plan.ranks_of_devices = {3, 5};
  plan.lanes.push_back({.kind = Lane::Kind::Collectives, .spans = {1}});
  const TaskId compute = add_task(plan, "compute", ClockId(0), false), sum = add_task(plan, "sum", ClockId(0), false),
               word = add_task(plan, "word", ClockId(0), true);
  plan.tasks[sum].kind = Task::Kind::Collective;
  plan.tasks[sum].lane = LaneId(2);
  plan.tasks[word].deferred = true;
  add_edge(plan, compute, sum, 0, kNone, Edge::Needs::Issued);
  Dependencies dependencies(plan);
  RankWaits waits(plan, dependencies);
  const auto ignore = [](TaskId, int64_t) {};
  const RankWaits::Time begin{};
  CHECK(waits.look(begin).empty());
  dependencies.start(ignore);
  dependencies.issued(compute, 0, ignore);
  std::vector<RankWaits::Wait> found = waits.look(begin + milliseconds(1));
  REQUIRE(found.size() == 1);  // the sum is under way, and its part of this rank is not there yet
  CHECK(found[0].task == word);
  CHECK(found[0].ranks == std::vector<int>{3, 5});
  dependencies.done(compute, 0, ignore);
  waits.look(begin + milliseconds(2));
  found = waits.look(begin + milliseconds(3));
  REQUIRE(found.size() == 2);
  CHECK(found[0].task == sum);
  CHECK(found[0].instance == 0);
  CHECK(found[0].since == begin + milliseconds(2));
  CHECK(found[0].ranks == std::vector<int>{5});
  CHECK(found[1].task == word);
  CHECK(found[1].since == begin + milliseconds(1));
  dependencies.issued(sum, 0, ignore);
  dependencies.done(sum, 0, ignore);
  dependencies.done(word, 0, ignore);
  found = waits.look(begin + milliseconds(4));
  REQUIRE(found.size() == 1);
  CHECK(found[0].instance == 1);
  CHECK(found[0].since == begin + milliseconds(4));
}

TEST_CASE("a rank that waits when nothing completes any more, and owes something later, tells of it then") {
  std::atomic<int32_t> executed{kNone};
  Harness harness(epochs(on_cpus(), 2), true, [&](std::unique_ptr<Device> device, CallWatch&) {
    return std::make_unique<Late>(std::move(device), executed);
  });
  WorldSettings world;
  world.size = 2;
  world.host = "127.0.0.1";
  world.port = free_port();
  std::promise<void> over;
  auto first = std::async(std::launch::async, [&, world] {
    Ranks ranks(world);
    largest_of(&ranks, 0);  // as at the beginning of a run
    over.get_future().wait();
  });
  world.rank = 1;
  SchedulerOptions options;
  options.ranks = std::make_shared<Ranks>(world);
  options.rest = [] { return std::optional<int64_t>(); };
  options.stall_seconds = options.standstill_seconds = 0.2;
  Scheduler* scheduler = nullptr;
  std::atomic<bool> told{false}, held{true};
  options.stalled = [&](const std::string&) {
    told = true;
    held = false;
    scheduler->fail(std::make_exception_ptr(RunError("told")));
  };
  // Batch 0 is trained with, and those after it wait for others, while the first report goes on.
  const TaskId fill = harness.task("cpu:0/learner 0/fill"), report = harness.task("report");
  harness.plan.tasks[fill].deferred = true;
  harness.host[fill] = [&, inner = harness.host[fill]](int64_t tick) {
    inner(tick);
    if (tick == 0) scheduler->finish(fill, tick);
  };
  harness.host[report] = [&](int64_t) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(15);
    while (held && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(milliseconds(5));
    if (held) scheduler->fail(std::make_exception_ptr(RunError("nothing was told")));
  };
  executed = int32_t(report);
  Scheduler made(*harness.binding, harness.host, options);
  scheduler = &made;
  CHECK(contains(message_of([&] { made.run(); }), "told"));
  CHECK(told);
  over.set_value();
  first.get();
}

}  // namespace rank_waits_test
