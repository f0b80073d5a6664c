// SPDX-License-Identifier: Apache-2.0

// Simulated plans: those whose time per iteration is known by arithmetic, and random ones against the critical cycle.

#include <doctest/doctest.h>

#include "executor/trace/simulate.h"
#include "tests/executor/fixture.h"
#include "tests/executor/plan/random_plan.h"
#include "tests/executor/trace/simulate_fixture.h"

namespace arbalest::simulate_test {
namespace {

using test::Builder;
using test::constant;
using test::costs_of;
using test::iteration_us;
using test::kIssued;
using test::message_of;
using test::Pipeline;

TEST_CASE("a pipeline is as fast as its slowest stage") {
  CHECK(iteration_us(Pipeline(30, 10, 80, 3, 3).plan) == doctest::Approx(80));
  CHECK(iteration_us(Pipeline(95, 10, 80, 3, 3).plan) == doctest::Approx(95));
  CHECK(iteration_us(Pipeline(30, 85, 80, 3, 3).plan) == doctest::Approx(85));
}

TEST_CASE("with one slot its users take turns") {
  CHECK(iteration_us(Pipeline(50, 30, 40, 1, 3).plan) == doctest::Approx(80));
  CHECK(iteration_us(Pipeline(50, 30, 40, 2, 3).plan) == doctest::Approx(50));
}

TEST_CASE("pace bounds what runs ahead") {
  CHECK(iteration_us(Pipeline(5, 30, 80, 3, 1).plan) == doctest::Approx(110));
  CHECK(iteration_us(Pipeline(5, 30, 80, 3, 2).plan) == doctest::Approx(80));
}

TEST_CASE("news of an end, dispatch and issuing cost what they are said to") {
  const Pipeline pipeline(5, 30, 80, 3, 1);
  Costs costs = costs_of(pipeline.plan);
  // Round the cycle of the pace: step ends, is noticed, copy is dispatched, issued and starts; step awaits its end.
  costs.lanes[pipeline.plan.tasks[pipeline.step].lane] = {0, 3, 7};
  costs.lanes[pipeline.plan.tasks[pipeline.copy].lane] = {11, 1, 1000};
  for (LaneCosts& lane : costs.lanes) lane = {lane.after_issue * 1000, lane.after_queue * 1000, lane.notice};
  costs.lanes[2].notice = 7'000;
  for (TaskCosts& task : costs.tasks) task.dispatch = constant(13'000);
  CHECK(iteration_us(pipeline.plan, costs) == doctest::Approx(110 + 7 + 13 + 11 + 3));

  // Three tasks of one iteration: one thread issues them one by one, two the first and then the other two at once.
  Builder wide;
  std::vector<TaskId> tasks;
  for (int i = 0; i < 3; ++i) tasks.push_back(wide.device("t", 5, wide.lane(Lane::Kind::Compute, 0, i)));
  for (const TaskId task : tasks) wide.edge(task, tasks[0], 4);
  for (const TaskId task : {tasks[1], tasks[2]}) wide.edge(tasks[0], task, 0, kIssued);
  costs = costs_of(wide.plan);
  for (TaskCosts& task : costs.tasks) task.issuing = 20'000;
  costs.threads.issuing = 1;
  CHECK(iteration_us(wide.plan, costs) == doctest::Approx(60));
  costs.threads.issuing = 2;
  CHECK(iteration_us(wide.plan, costs) == doctest::Approx(40).epsilon(0.02));
}

TEST_CASE("host tasks share threads") {
  Builder host;
  for (int i = 0; i < 3; ++i) host.host("t", 30);
  Costs costs = costs_of(host.plan);
  for (const auto& [threads, expected] : {std::pair{1, 90.0}, {2, 45.0}, {3, 30.0}, {8, 30.0}}) {
    costs.threads.host = threads;
    CHECK(iteration_us(host.plan, costs) == doctest::Approx(expected).epsilon(0.01));
  }
  Builder wide;
  wide.host("t", 30, 4);
  CHECK(iteration_us(wide.plan) == doctest::Approx(7.5).epsilon(0.02));
}

TEST_CASE("a lane is in order, lanes of a GPU run side by side, those of a CPU take turns") {
  const auto two = [](PlanDevice::Kind kind, bool one_lane, int32_t second_device = 0) {
    Builder builder(kind);
    const LaneId first = builder.lane(Lane::Kind::Compute, 0, 0);
    const LaneId second = one_lane ? first : builder.lane(Lane::Kind::Collectives, second_device);
    builder.device("a", 60, first);
    builder.device("b", 50, second);
    builder.edge(0, 1, 2);
    builder.edge(1, 0, 2);
    return iteration_us(builder.plan);
  };
  CHECK(two(PlanDevice::Kind::Cuda, true) == doctest::Approx(110));
  CHECK(two(PlanDevice::Kind::Cuda, false) == doctest::Approx(60));
  CHECK(two(PlanDevice::Kind::Cpu, false) == doctest::Approx(110));
  CHECK(two(PlanDevice::Kind::Cpu, false, kNone) == doctest::Approx(60));
}

TEST_CASE("a collective takes a share of what its GPUs compute while it runs") {
  const auto iteration = [](PlanDevice::Kind kind, double share) {
    Builder builder(kind);
    const LaneId compute = builder.lane(Lane::Kind::Compute, 0, 0);
    const TaskId first = builder.device("first", 40, compute), second = builder.device("second", 100, compute);
    const TaskId reduced = builder.device("all-reduce", 50, builder.lane(Lane::Kind::Collectives, kNone));
    builder.edge(first, second, 0, kIssued);
    builder.edge(second, first, 1, kIssued);
    builder.edge(first, reduced, 0, kIssued);
    builder.edge(reduced, first, 1, kIssued);
    Costs costs = costs_of(builder.plan);
    costs.collective_share = share;
    return iteration_us(builder.plan, costs);
  };
  CHECK(iteration(PlanDevice::Kind::Cuda, 0) == doctest::Approx(140));
  CHECK(iteration(PlanDevice::Kind::Cuda, 0.4) == doctest::Approx(160));  // in 50 µs the work of 30
  CHECK(iteration(PlanDevice::Kind::Cpu, 0.4) == doctest::Approx(140));
}

TEST_CASE("a CPU's lanes take turns whatever their latencies") {
  Builder builder(PlanDevice::Kind::Cpu);
  const TaskId a = builder.device("a", 60, builder.lane(Lane::Kind::Compute, 0, 0));
  const TaskId b = builder.device("b", 50, builder.lane(Lane::Kind::Collectives));
  builder.edge(a, b, 2);
  builder.edge(b, a, 4);
  Costs costs = costs_of(builder.plan);
  costs.lanes[1].after_queue = 1'000;
  costs.lanes[2].after_queue = 5'000;
  const Simulation simulation = simulate(builder.plan, costs);
  CHECK(simulation.steady.iteration_ns == doctest::Approx(116'000));
  for (size_t i = 1; i < simulation.spans.size(); ++i) {
    REQUIRE(simulation.spans[i].task != simulation.spans[i - 1].task);
  }
}

TEST_CASE("durations are replayed in order, from instance 0 on") {
  const Pipeline pipeline(5, 5, 80, 3, 3);
  Costs costs = costs_of(pipeline.plan);
  const std::vector<int64_t> durations = {20'000, 40'000, 90'000};
  costs.tasks[pipeline.step].duration = durations;
  SimulationOptions options;
  options.iterations = 90;
  const Simulation simulation = simulate(pipeline.plan, costs, options);
  CHECK(simulation.steady.iteration_ns == doctest::Approx(50'000).epsilon(0.02));
  for (const TaskSpan& span : simulation.spans) {
    if (span.task != pipeline.step) continue;
    CHECK(span.ended - span.started == durations[size_t(span.instance) % 3]);
  }
  CHECK(simulation.busy[2] == doctest::Approx(1));
  CHECK(simulation.busy[1] == doctest::Approx(0.1).epsilon(0.05));
  CHECK(simulation.busy[0] == doctest::Approx(0.1).epsilon(0.05));
}

// One clock, a lane for each device task.
Plan random_plan(std::mt19937& random) {
  Builder builder;
  builder.plan.clocks[0].ticks = 2000;
  const int tasks = test::pick(random, 2, 9);
  for (int k = 0; k < tasks; ++k) {
    const std::string name = "t" + std::to_string(k);
    const double microseconds = test::pick(random, 1, 100);
    if (test::pick(random, 0, 1) == 0) {
      builder.host(name, microseconds, test::pick(random, 1, 4));
    } else {
      builder.device(name, microseconds, builder.lane(Lane::Kind::Compute));
    }
  }
  const int edges = test::pick(random, tasks, 3 * tasks);
  for (int k = 0; k < edges; ++k) {
    const auto from = TaskId(test::pick(random, 0, tasks - 1)), to = TaskId(test::pick(random, 0, tasks - 1));
    const int64_t distance = from < to ? test::pick(random, 0, 2) / 2 : test::pick(random, 1, 4);
    const bool on_devices = !builder.plan.on_host(from) && !builder.plan.on_host(to);
    builder.edge(from, to, distance, on_devices && test::pick(random, 0, 1) ? kIssued : Edge::Needs::Done);
  }
  return builder.plan;
}

TEST_CASE("without host costs the critical cycle is what a plan takes") {
  std::mt19937 random(5);
  int long_cycles = 0;
  for (int round = 0; round < 300; ++round) {
    const Plan plan = random_plan(random);
    const Cycle critical = critical_cycle(plan);
    long_cycles += critical.edges.size() > 1;
    REQUIRE_MESSAGE(iteration_us(plan) == doctest::Approx(critical.bound()).epsilon(0.01), "round ", round);
    Costs costs = costs_of(plan);
    costs.threads = {1, 1};
    REQUIRE(iteration_us(plan, costs) >= critical.bound() * 0.99);
  }
  CHECK(long_cycles > 50);
}

TEST_CASE("with several clocks and shared lanes no plan beats its critical cycle") {
  std::mt19937 random(6);
  int live = 0;
  for (int round = 0; round < 300; ++round) {
    Plan plan = test::random_plan(random);
    for (Clock& clock : plan.clocks) clock.ticks *= 40;
    for (Task& task : plan.tasks) task.microseconds = test::pick(random, 1, 100);
    if (!message_of([&] { verify(plan); }).empty()) continue;
    const Cycle critical = critical_cycle(plan);
    if (critical.edges.empty()) continue;
    ++live;
    const Simulation simulation = simulate(plan, costs_of(plan));
    int64_t end = 0, instances = 0;
    for (const TaskSpan& span : simulation.spans) end = std::max(end, span.ended);
    for (const Task& task : plan.tasks) instances += plan.clocks[task.clock].ticks;
    REQUIRE(int64_t(simulation.spans.size()) == instances);
    const double turns = double(plan.clocks[0].ticks) / critical.lag - 2;
    REQUIRE_MESSAGE(double(end) / 1000 >= turns * critical.microseconds, "round ", round);
  }
  CHECK(live > 100);
}

}  // namespace
}  // namespace arbalest::simulate_test
