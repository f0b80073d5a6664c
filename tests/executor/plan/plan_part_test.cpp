// SPDX-License-Identifier: Apache-2.0

// The parts of a plan that several processes run.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "executor/plan/make_plan.h"
#include "executor/plan/plan_part.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace plan_part_test {
namespace {

// Devices of two processes with two each, on one host or on two.
Plan plan_of_two(const char* strategy, int learners, bool hosts_apart = false, OnLost on_lost = OnLost::End) {
  TinyNet net;
  net.source = "glyphs:?train=200&test=60&size=16";
  net.layers = "c = arbalest.ConvBnRelu <filters = 2, kernel_shape = [3, 3]> (x)\nh = Flatten (c)\n";
  net.synchronize = fmt::format("strategy = \"{}\", every_hosts = {}", strategy, hosts_apart ? 3 : 1);
  net.validate = "batch = 5, recalibrate = 2";
  net.train = "lr = 0.1, ema = 0.9";
  SessionOptions options = on_cpus(4, learners);
  options.files.save_best = "best";
  options.on_lost = on_lost;
  for (size_t d = 0; d < 4; ++d) {
    options.learners.devices[d] = {PlanDevice::Kind::Cpu, int(d % 2), int32_t(d / 2), d < 2 ? "a" : "b",
                                   hosts_apart ? int32_t(d / 2) : 0};
  }
  const Prepared prepared = prepare(tiny(net), options);
  return make_plan(prepared.program, prepared.request);
}

std::map<std::string, const Task*> by_name(const Plan& plan) {
  std::map<std::string, const Task*> tasks;
  for (const Task& task : plan.tasks) CHECK(tasks.emplace(task.name, &task).second);
  return tasks;
}

// The buffers that a task's launches read and write, by their names.
std::vector<std::string> operands_of(const Plan& plan, const Task& task) {
  std::vector<std::string> names;
  for (int32_t l = task.first_launch; l < task.first_launch + task.launches; ++l) {
    const Launch& launch = plan.launches[size_t(l)];
    for (int32_t o = launch.first_operand; o < launch.first_operand + launch.inputs + launch.outputs; ++o) {
      const Operand& operand = plan.operands[size_t(o)];
      names.push_back(operand.buffer == kNone ? "" : plan.buffers[operand.buffer].name);
    }
  }
  return names;
}

}  // namespace

TEST_CASE("each device's tasks and memory are in one part, collectives and the host's tasks in all") {
  for (const char* strategy : {"ssgd", "sma", "local", "papa", "diloco"}) {
    for (const int learners : {1, 2}) {
      CAPTURE(strategy);
      const Plan whole = plan_of_two(strategy, learners);
      REQUIRE(rank_count(whole) == 2);
      CHECK(whole.lanes[1].name.starts_with("a/cpu:0/"));
      const auto all = by_name(whole);
      std::map<std::string, int> found, memory;
      size_t replicas = 0;
      for (int32_t rank = 0; rank < 2; ++rank) {
        const Plan part = part_of(whole, rank);
        CHECK(part.devices.size() == 2);
        CHECK(part.ranks_of_devices == std::vector<int>{0, 0, 1, 1});
        for (const Arena& arena : part.arenas) ++memory[arena.name];
        for (const auto& [name, task] : by_name(part)) {
          ++found[name];
          const std::vector<std::string> here = operands_of(part, *task), there = operands_of(whole, *all.at(name));
          if (task->kind != Task::Kind::Collective) {
            CHECK(here == there);
            continue;
          }
          REQUIRE(here.size() == there.size());
          for (size_t o = 0; o < here.size(); ++o) {
            const bool own = there[o].starts_with(rank == 0 ? "a/" : "b/");
            CHECK(here[o] == (own ? there[o] : ""));
          }
        }
        for (const LoopPlan& loop : part.handles.loops) {
          CHECK(loop.everywhere == whole.handles.find(loop.role)->replicas.size());
          for (const Replica& replica : loop.replicas) {
            const Replica& same = whole.handles.find(loop.role)->replicas[size_t(replica.place)];
            CHECK(part.tasks[replica.update()].name == whole.tasks[same.update()].name);
            CHECK(part.buffers[replica.tally == kNone ? replica.slots : replica.tally].name ==
                  whole.buffers[same.tally == kNone ? same.slots : same.tally].name);
            CHECK(replica.learner == same.learner);
            ++replicas;
          }
        }
        CHECK(part.tasks[part.handles.report].deferred);
        CHECK(part.tasks[part.handles.validation_end].deferred);
        CHECK((part.handles.kept_weights != kNone) == (rank == 0 && whole.handles.kept_weights != kNone));
      }
      size_t expected = 0;
      for (const LoopPlan& loop : whole.handles.loops) expected += loop.replicas.size();
      CHECK(replicas == expected);
      for (const auto& [name, task] : all) {
        const bool shared = task->kind == Task::Kind::Collective || name == "report" || name.starts_with("validation ");
        CHECK_MESSAGE(found[name] == (shared ? 2 : 1), name);
      }
      for (const Arena& arena : whole.arenas) CHECK(memory[arena.name] == 1);
    }
  }
}

TEST_CASE("what learners of a host average by themselves is in the parts of its processes alone") {
  for (const char* strategy : {"sma", "local"}) {
    const Plan whole = plan_of_two(strategy, 2, true);
    CHECK(whole.clocks[whole.relations[whole.handles.by_hosts].coarse].name == "hosts");
    std::map<std::string, int> found;
    for (int32_t rank = 0; rank < 2; ++rank) {
      const Plan part = part_of(whole, rank);
      for (const auto& [name, task] : by_name(part)) {
        found[name] += task->kind == Task::Kind::Collective;
        const std::vector<std::string> operands = operands_of(part, *task);
        if (name == fmt::format("host {}/all-reduce models", rank)) {
          CHECK(std::count(operands.begin(), operands.end(), "") == 0);
          CHECK(ranks_of(part, task->lane) == std::vector<int>{rank, rank});
        } else if (name.starts_with("mean ")) {
          CHECK(std::count(operands.begin(), operands.end(), "") * 2 == int64_t(operands.size()));
          CHECK(ranks_of(part, task->lane) == std::vector<int>{0, 0, 1, 1});
        }
      }
    }
    CHECK(found["host 0/all-reduce models"] == 1);
    CHECK(found["host 1/all-reduce models"] == 1);
    CHECK(found[std::string("sma") == strategy ? "mean average of hosts" : "mean model of hosts"] == 2);
    CHECK(found["mean next average of hosts"] == (std::string("sma") == strategy ? 2 : 0));
  }
}

TEST_CASE("what needs a collective's result waits for its end if ranks may be lost, and for its place if not") {
  for (const bool apart : {false, true}) {
    for (const char* strategy : {"sma", "local"}) {
      CAPTURE(strategy);
      for (const OnLost on_lost : {OnLost::End, OnLost::Continue}) {
        const Plan plan = plan_of_two(strategy, 2, apart, on_lost);
        int edges = 0;
        for (const Edge& edge : plan.edges) {
          const bool sums = plan.tasks[edge.from].kind == Task::Kind::Collective && edge.why == Edge::Why::Data;
          if (!sums || plan.on_host(edge.to)) continue;
          ++edges;
          CHECK(edge.needs == (on_lost == OnLost::Continue ? Edge::Needs::Done : Edge::Needs::Issued));
        }
        CHECK(edges > 0);
      }
    }
  }
}

TEST_CASE("an edge from a device of one process to a device of another is refused") {
  Plan whole = plan_of_two("sma", 1);
  const auto task = [&](const std::string& name) {
    const auto found =
        std::find_if(whole.tasks.begin(), whole.tasks.end(), [&](const Task& t) { return t.name == name; });
    REQUIRE(found != whole.tasks.end());
    return TaskId(found - whole.tasks.begin());
  };
  whole.edges.push_back({task("a/cpu:0/learner 0/step"), task("b/cpu:0/learner 2/step"), 1});
  CHECK_THROWS_WITH(part_of(whole, 1),
                    "b/cpu:0/learner 2/step on one rank waits for a/cpu:0/learner 0/step on another");
}

}  // namespace plan_part_test
