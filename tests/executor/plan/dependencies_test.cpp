// SPDX-License-Identifier: Apache-2.0

// The dependency engine against the definition of an edge, on one thread: random walks over random plans, stop, cancel
// and the stall report.

#include <doctest/doctest.h>

#include <deque>

#include "executor/plan/dependencies.h"
#include "tests/executor/plan/random_plan.h"

namespace arbalest::dependencies_test {
namespace {

using test::add_edge;
using test::add_task;
using test::empty_plan;
using test::Instance;
using test::is_live;

// A run on one thread that ends instances in random order, and checks each against the definition when it becomes
// ready.
class Walk {
 public:
  Walk(const Plan& plan, uint32_t seed)
      : plan_(plan),
        definition_(plan),
        dependencies_(plan),
        random_(seed),
        records_(plan.tasks.size()),
        queues_(plan.tasks.size()) {
    for (const TaskId task : records_.ids()) {
      records_[task].resize(size_t(definition_.ticks(task)));
    }
  }

  Dependencies& dependencies() { return dependencies_; }
  int64_t fired(TaskId task) const { return fired_at_[task]; }
  auto ready() {
    return [this](TaskId task, int64_t instance) { meet(task, instance); };
  }

  void start() {
    fired_at_.assign(plan_.tasks.size(), 0);
    ended_ = dependencies_.start(ready());
  }

  // Ends or issues one instance; false if none runs.
  bool advance() {
    size_t open = 0;
    for (const auto& queue : queues_) open += !queue.empty();
    const size_t choices = running_.size() + open;
    if (choices == 0) return false;
    size_t choice = size_t(test::pick(random_, 0, int(choices) - 1));
    REQUIRE_FALSE(ended_);
    if (choice < running_.size()) {
      const Instance chosen = running_[choice];
      running_.erase(running_.begin() + int64_t(choice));
      plan_.on_host(chosen.task) ? end(chosen) : issue(chosen);
      return true;
    }
    choice -= running_.size();
    for (const TaskId task : queues_.ids()) {
      if (queues_[task].empty() || choice-- != 0) continue;
      const Instance chosen{task, queues_[task].front()};
      queues_[task].pop_front();
      end(chosen);
      break;
    }
    return true;
  }

  void check_end() {
    CHECK(ended_);
    CHECK(dependencies_.idle());
    CHECK(dependencies_.complete());
    CHECK(dependencies_.describe_waiting().empty());
    for (const TaskId task : records_.ids()) {
      CHECK(fired(task) == definition_.ticks(task));
    }
  }

 private:
  struct Record {
    bool fired = false, issued = false, done = false;
  };

  void meet(TaskId task, int64_t instance) {
    REQUIRE(instance == fired_at_[task]++);
    Record& record = records_[task].at(size_t(instance));
    REQUIRE_FALSE(record.fired);
    record.fired = true;
    for (const Edge& edge : plan_.edges) {
      if (edge.to != task) continue;
      const int64_t needs = definition_.needs(edge, instance);
      if (needs < 0) continue;
      const Record& needed = records_[edge.from].at(size_t(needs));
      REQUIRE((edge.needs == Edge::Needs::Done ? needed.done : needed.issued));
    }
    const int64_t width = plan_.on_host(task) ? plan_.tasks[task].width : 1;
    for (int64_t before = 0; before + width <= instance; ++before) {
      const Record& earlier = records_[task][size_t(before)];
      REQUIRE((plan_.on_host(task) ? earlier.done : earlier.issued));
    }
    running_.push_back({task, instance});
  }

  void issue(Instance chosen) {
    records_[chosen.task][size_t(chosen.instance)].issued = true;
    queues_[chosen.task].push_back(chosen.instance);
    ended_ = dependencies_.issued(chosen.task, chosen.instance, ready());
  }

  void end(Instance chosen) {
    records_[chosen.task][size_t(chosen.instance)].done = true;
    ended_ = dependencies_.done(chosen.task, chosen.instance, ready());
  }

  const Plan& plan_;
  test::Definition definition_;
  Dependencies dependencies_;
  std::mt19937 random_;
  Table<TaskId, std::vector<Record>> records_;
  Table<TaskId, int64_t> fired_at_;
  std::vector<Instance> running_;              // ready; host instances end from here, device instances are issued
  Table<TaskId, std::deque<int64_t>> queues_;  // issued instances of each device task, which end in order
  bool ended_ = false;
};

TEST_CASE("live plans run to the end in every order tried, and each edge holds") {
  std::mt19937 random(11);
  int walked = 0;
  for (int round = 0; round < 600; ++round) {
    const Plan plan = test::random_plan(random);
    if (!is_live(plan)) continue;
    for (uint32_t seed = 0; seed < 4; ++seed) {
      Walk walk(plan, seed);
      walk.start();
      while (walk.advance()) {
      }
      walk.check_end();
      ++walked;
    }
  }
  CHECK(walked > 500);
}

TEST_CASE("stop ends after a whole iteration of all tasks") {
  std::mt19937 random(12);
  int early = 0;
  for (int round = 0; round < 1500; ++round) {
    const Plan plan = test::random_plan(random);
    if (!is_live(plan)) continue;
    Walk walk(plan, uint32_t(round));
    walk.start();
    for (int step = test::pick(random, 0, 40); step > 0; --step) walk.advance();
    if (walk.dependencies().complete()) continue;
    walk.dependencies().stop(walk.ready());
    const int64_t limit = walk.dependencies().limit(0);
    while (walk.advance()) {
    }
    REQUIRE(walk.dependencies().idle());
    REQUIRE(walk.dependencies().complete());
    for (const TaskId task : plan.tasks.ids()) {
      if (plan.tasks[task].clock == 0) REQUIRE(walk.fired(task) == limit);
    }
    early += limit > 0 && limit < plan.clocks[0].ticks;
  }
  CHECK(early > 50);
}

TEST_CASE("nothing fires after cancel") {
  std::mt19937 random(13);
  int cut = 0;
  for (int round = 0; round < 300; ++round) {
    const Plan plan = test::random_plan(random);
    if (!is_live(plan)) continue;
    Walk walk(plan, uint32_t(round));
    walk.start();
    for (int step = test::pick(random, 0, 10); step > 0; --step) walk.advance();
    if (walk.dependencies().complete()) continue;
    walk.dependencies().cancel();
    Table<TaskId, int64_t> fired;
    for (const TaskId task : plan.tasks.ids()) fired.push_back(walk.fired(task));
    while (walk.advance()) {
    }
    for (const TaskId task : plan.tasks.ids()) CHECK(walk.fired(task) == fired[task]);
    walk.dependencies().stop(walk.ready());
    CHECK_FALSE(walk.advance());
    CHECK(walk.dependencies().idle());
    CHECK_FALSE(walk.dependencies().complete());
    ++cut;
  }
  CHECK(cut > 50);
}

TEST_CASE("the stall report names the edges that lack their instance") {
  Plan plan = empty_plan(8);
  const TaskId fill = add_task(plan, "fill", 0, true, 2), step = add_task(plan, "step", 0, true);
  add_edge(plan, fill, step, 0);
  add_edge(plan, step, fill, 3);
  Dependencies dependencies(plan);
  const auto ignore = [](TaskId, int64_t) {};
  CHECK_FALSE(dependencies.start(ignore));
  CHECK_FALSE(dependencies.done(fill, 1, ignore));  // out of order: instance 0 still runs
  std::vector<Dependencies::Waiting> waiting = dependencies.describe_waiting();
  REQUIRE(waiting.size() == 2);
  CHECK(waiting[0].task == fill);
  CHECK(waiting[0].running == 2);
  CHECK(waiting[0].lacks.empty());
  CHECK(waiting[1].task == step);
  CHECK(waiting[1].instance == 0);
  REQUIRE(waiting[1].lacks.size() == 1);
  CHECK(waiting[1].lacks[0].edge == EdgeId(0));
  CHECK(waiting[1].lacks[0].needs == 0);
  dependencies.done(fill, 0, ignore);  // fires fill 2 and step 0; fill 3 waits for step 0
  dependencies.done(fill, 2, ignore);
  waiting = dependencies.describe_waiting();
  REQUIRE(waiting.size() == 2);
  CHECK(waiting[0].instance == 3);
  REQUIRE(waiting[0].lacks.size() == 1);
  CHECK(waiting[0].lacks[0].edge == EdgeId(1));
  CHECK(waiting[0].lacks[0].needs == 0);
}

}  // namespace
}  // namespace arbalest::dependencies_test
