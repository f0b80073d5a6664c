// SPDX-License-Identifier: Apache-2.0

// Plans that are brought to rest at any moment, in any order of what ends, and go on from there.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "executor/plan/dependencies.h"
#include "executor/plan/make_plan.h"
#include "executor/plan/plan_part.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace rest_test {
namespace {

struct Instance {
  TaskId task = kNone;
  int64_t instance = 0;
  bool issued = false;
};

// Ends what is ready in random order; each instance of a device task is issued first, and ends in its order.
class Walk {
 public:
  Walk(const Plan& plan, const PlanPosition& from, uint32_t seed)
      : plan_(plan), dependencies_(plan, from), random_(seed), ended_(dependencies_.instances_before(from)) {}

  Dependencies& dependencies() { return dependencies_; }
  const Table<TaskId, int64_t>& ended() const { return ended_; }
  auto ready() {
    return [this](TaskId task, int64_t instance) { running_.push_back({task, instance, plan_.on_host(task)}); };
  }

  // False if nothing is under way.
  bool advance() {
    if (running_.empty()) return false;
    const size_t choice = std::uniform_int_distribution<size_t>(0, running_.size() - 1)(random_);
    const auto of_task = [&](const Instance& each) { return each.task == running_[choice].task; };
    const auto first = std::find_if(running_.begin(), running_.end(), of_task);  // in the task's order
    if (!first->issued) {
      first->issued = true;
      const Instance issued = *first;
      dependencies_.issued(issued.task, issued.instance, ready());
      return true;
    }
    const Instance ended = *first;
    running_.erase(first);
    ++ended_[ended.task];
    dependencies_.done(ended.task, ended.instance, ready());
    return true;
  }

 private:
  const Plan& plan_;
  Dependencies dependencies_;
  std::mt19937 random_;
  Table<TaskId, int64_t> ended_;
  std::vector<Instance> running_;
};

// Checks that the instances before a position are closed under the plan's edges, and that of the next validation they
// include at most the copy of its model.
void check_position(const Plan& plan, const Walk& walk, const PlanPosition& at, const Table<TaskId, int64_t>& before) {
  for (const TaskId task : plan.tasks.ids()) {
    const int64_t instances = before[task];
    CHECK(instances <= walk.ended()[task]);
    if (plan.tasks[task].clock == 0) CHECK(instances == at.iterations);
  }
  for (const Edge& edge : plan.edges) {
    const int64_t last = before[edge.to] - 1;
    if (last >= 0) CHECK(needed_instance(plan, edge, last) < before[edge.from]);
  }
  const LoopPlan* validation = plan.handles.find(LoopRole::Validate);
  REQUIRE(validation);
  const int64_t batches =
      plan.clocks[validation->clock].ticks / plan.clocks[plan.tasks[plan.handles.validation_end].clock].ticks;
  CHECK(before[plan.handles.validation_end] == at.validations);
  for (const Replica& replica : validation->replicas) {
    CHECK(before[replica.read_back] == at.validations);
    CHECK(before[replica.update()] == at.validations * batches);
  }
}

}  // namespace

TEST_CASE("a plan comes to rest at any moment, and runs to its end from there") {
  int64_t validating = 0, random = 0;
  for (const char* strategy : {"none", "ssgd", "sma", "local", "papa", "diloco"}) {
    for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
      TinyNet net;
      net.source = "glyphs:?train=100&test=60&size=16";
      net.layers = "c = arbalest.ConvBnRelu <filters = 2, kernel_shape = [3, 3]> (x)\nh = Flatten (c)\n";
      net.train = "lr = 0.1, accumulate = 2, ema = 0.9";
      net.synchronize = fmt::format("strategy = \"{}\"", strategy);
      net.validate = "batch = 5, recalibrate = 2";
      SessionOptions options = on_cpus(devices, learners);
      options.length.epochs = 4;
      options.rules.plateau = learners - 1;
      const Prepared prepared = prepare(tiny(net), options);
      const Plan plan = make_plan(prepared.program, prepared.request);
      for (uint32_t seed = 0; seed < 60; ++seed) {
        CAPTURE(strategy);
        CAPTURE(seed);
        PlanPosition at;
        for (int rests = 0; rests < 4; ++rests) {
          Walk walk(plan, at, seed * 10 + uint32_t(rests));
          walk.dependencies().rest_at(INT64_MAX);
          walk.dependencies().start(walk.ready());
          const int64_t steps = rests == 3 ? INT64_MAX : 50 + (seed * 7919 + rests * 104729) % 700;
          for (int64_t step = 0; step < steps && walk.advance(); ++step) {
          }
          walk.dependencies().pause(walk.ready());
          while (walk.advance()) {
          }
          REQUIRE(walk.dependencies().idle());
          REQUIRE(walk.dependencies().complete());
          at = walk.dependencies().position();
          check_position(plan, walk, at, walk.dependencies().instances_before(at));
          ++random;
          validating += plan.relation(plan.handles.by_validation)->coarse_of(at.iterations) > at.validations;
          if (!walk.dependencies().at_end()) continue;
          for (const TaskId task : plan.tasks.ids()) {
            CHECK(walk.ended()[task] == plan.clocks[plan.tasks[task].clock].ticks);
          }
          break;
        }
      }
    }
  }
  CHECK(validating > random / 20);
}

TEST_CASE("parts of a plan on several processes come to rest after the same iteration, however far apart they are") {
  int64_t moved = 0;
  for (const char* strategy : {"ssgd", "sma"}) {
    TinyNet net;
    net.source = "glyphs:?train=100&test=60&size=16";
    net.train = "lr = 0.1, accumulate = 2";
    net.synchronize = fmt::format("strategy = \"{}\"", strategy);
    net.validate = "batch = 5, recalibrate = 2";
    net.layers = "c = arbalest.ConvBnRelu <filters = 2, kernel_shape = [3, 3]> (x)\nh = Flatten (c)\n";
    SessionOptions options = on_cpus(3, 1);
    for (int32_t rank = 0; rank < 3; ++rank) options.learners.devices[size_t(rank)].rank = rank;
    options.length.epochs = 4;
    const Prepared prepared = prepare(tiny(net), options);
    const Plan whole = make_plan(prepared.program, prepared.request);
    std::vector<Plan> parts;
    for (int32_t rank = 0; rank < 3; ++rank) parts.push_back(part_of(whole, rank));
    for (uint32_t seed = 0; seed < 60; ++seed) {
      CAPTURE(strategy);
      CAPTURE(seed);
      PlanPosition from;
      for (int rests = 0; rests < 3; ++rests) {
        std::vector<std::unique_ptr<Walk>> walks;
        int64_t most = 0, least = INT64_MAX;
        for (uint32_t rank = 0; rank < 3; ++rank) {
          Walk& walk = *walks.emplace_back(std::make_unique<Walk>(parts[rank], from, seed * 31 + rank));
          walk.dependencies().rest_at(INT64_MAX);
          walk.dependencies().start(walk.ready());
          const uint32_t steps = (seed * 7919 + rank * 104729 + uint32_t(rests) * 31) % 300;
          for (uint32_t step = 0; step < steps && walk.advance(); ++step) {
          }
          const int64_t cannot_but_run = walk.dependencies().hold();
          most = std::max(most, cannot_but_run);
          least = std::min(least, cannot_but_run);
          for (uint32_t step = 0; step < seed && walk.advance(); ++step) {  // nothing new begins meanwhile
          }
        }
        moved += most > least;
        for (const auto& walk : walks) {
          walk->dependencies().pause_at(most, walk->ready());
          while (walk->advance()) {
          }
          REQUIRE(walk->dependencies().complete());
          const PlanPosition at = walk->dependencies().position();
          CHECK(at.iterations == most);
          CHECK(at.validations == whole.relation(whole.handles.by_validation)->coarse_of(most));
        }
        from = walks.front()->dependencies().position();
      }
    }
  }
  CHECK(moved > 50);
}

}  // namespace rest_test
