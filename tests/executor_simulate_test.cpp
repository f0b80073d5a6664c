// Simulated plans: those whose time per iteration is known by arithmetic, random ones against the critical cycle, and
// sleeping tasks against the scheduler. The changes of --what-if against plans that were made with the setting changed.

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "executor/scheduler.h"
#include "executor/simulate.h"
#include "executor/trace.h"
#include "executor/trace_plan.h"
#include "executor/what_if.h"
#include "tests/executor_fixture.h"
#include "tests/executor_random_plan.h"

namespace arbalest {
namespace {

using test::add_edge;
using test::contains;
using test::message_of;

constexpr int64_t kTicks = 400;

// Plans whose tasks take what their `microseconds` say, with as many threads as they like.
class Builder {
 public:
  explicit Builder(PlanDevice::Kind kind = PlanDevice::Kind::Cuda) {
    plan.clocks = {{"batch", kTicks}};
    plan.devices = {{kind, 0}};
    plan.lanes.resize(1);
    plan.lanes[0].name = "host";
  }

  LaneId lane(Lane::Kind kind, int32_t device = 0, int32_t learner = kNone) {
    plan.lanes.push_back({kind, device, learner, "lane " + std::to_string(plan.lanes.size())});
    return LaneId(plan.lanes.size() - 1);
  }
  TaskId host(const std::string& name, double microseconds, int32_t width = 1) {
    const TaskId task = add(name, microseconds, 0);
    plan.tasks[size_t(task)].width = width;
    edge(task, task, width, Edge::Needs::Done, Edge::Why::Self);
    return task;
  }
  TaskId device(const std::string& name, double microseconds, LaneId lane) {
    const TaskId task = add(name, microseconds, lane);
    plan.tasks[size_t(task)].device = plan.lanes[size_t(lane)].device;
    plan.tasks[size_t(task)].learner = plan.lanes[size_t(lane)].learner;
    edge(task, task, 1, Edge::Needs::Issued, Edge::Why::Lane);
    return task;
  }
  void edge(TaskId from, TaskId to, int64_t distance, Edge::Needs needs = Edge::Needs::Done,
            Edge::Why why = Edge::Why::Data) {
    add_edge(plan, from, to, distance, kNone, needs);
    plan.edges.back().why = why;
  }

  Plan plan;

 private:
  TaskId add(const std::string& name, double microseconds, LaneId lane) {
    const TaskId task = test::add_task(plan, name, 0, true);
    plan.tasks[size_t(task)].microseconds = microseconds;
    plan.tasks[size_t(task)].lane = lane;
    return task;
  }
};

Replay constant(int64_t ns) {
  return std::vector<int64_t>{ns};
}

Costs costs_of(const Plan& plan) {
  Costs costs;
  for (const Task& task : plan.tasks) costs.tasks.push_back({constant(int64_t(task.microseconds * 1000)), {}, 0});
  costs.lanes.resize(plan.lanes.size());
  costs.contention.resize(plan.devices.size());
  costs.threads = {1000, 1000};
  return costs;
}

double iteration_us(const Plan& plan, const Costs& costs) {
  verify(plan);
  return simulate(plan, costs).steady.iteration_ns / 1000;
}
double iteration_us(const Plan& plan) {
  return iteration_us(plan, costs_of(plan));
}

constexpr auto kIssued = Edge::Needs::Issued;

// fill (host) → copy → step, with slots between them and a bound on how far the host runs ahead.
struct Pipeline : Builder {
  TaskId fill, copy, step;

  Pipeline(double fill_us, double copy_us, double step_us, int64_t depth, int64_t pace)
      : fill(host("fill", fill_us)),
        copy(device("copy", copy_us, lane(Lane::Kind::CopyIn))),
        step(device("step", step_us, lane(Lane::Kind::Compute, 0, 0))) {
    plan.tasks[size_t(fill)].kind = Task::Kind::Fill;
    plan.tasks[size_t(copy)].kind = Task::Kind::CopyIn;
    plan.tasks[size_t(step)].kind = Task::Kind::Compute;
    edge(fill, copy, 0);
    edge(copy, fill, depth, Edge::Needs::Done, Edge::Why::Reuse);
    edge(copy, step, 0, kIssued);
    edge(step, copy, 2, kIssued, Edge::Why::Reuse);
    edge(step, copy, pace, Edge::Needs::Done, Edge::Why::Pace);
  }
};

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
  costs.lanes[size_t(pipeline.plan.tasks[size_t(pipeline.step)].lane)] = {0, 3, 7};
  costs.lanes[size_t(pipeline.plan.tasks[size_t(pipeline.copy)].lane)] = {11, 1, 1000};
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

TEST_CASE("durations are replayed in order, from instance 0 on") {
  const Pipeline pipeline(5, 5, 80, 3, 3);
  Costs costs = costs_of(pipeline.plan);
  const std::vector<int64_t> durations = {20'000, 40'000, 90'000};
  costs.tasks[size_t(pipeline.step)].duration = durations;
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
    const TaskId from = test::pick(random, 0, tasks - 1), to = test::pick(random, 0, tasks - 1);
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
    for (const Task& task : plan.tasks) instances += plan.clocks[size_t(task.clock)].ticks;
    REQUIRE(int64_t(simulation.spans.size()) == instances);
    const double turns = double(plan.clocks[0].ticks) / critical.lag - 2;
    REQUIRE_MESSAGE(double(end) / 1000 >= turns * critical.microseconds, "round ", round);
  }
  CHECK(live > 100);
}

// The trace of a simulation, as a run would have recorded it.
TraceFile trace_of(const Plan& plan, const Costs& costs) {
  TraceFile trace;
  trace.plan = plan;
  trace.tasks = simulate(plan, costs).spans;
  trace.threads = costs.threads;
  for (const TaskSpan& span : trace.tasks) {
    if (plan.on_host(span.task)) continue;
    trace.issues.push_back(
        {span.task, span.instance, span.issued, span.issued + costs.tasks[size_t(span.task)].issuing, 0});
  }
  return trace;
}

Costs measured(const TraceFile& trace) {
  return measure_costs(trace, find_steady_state(trace.plan, trace.tasks, SimulationOptions{}.warm_up));
}

TEST_CASE("costs come out of a trace as they went in") {
  const Pipeline pipeline(20, 30, 80, 3, 1);
  Costs costs = costs_of(pipeline.plan);
  costs.tasks[size_t(pipeline.step)].duration = std::vector<int64_t>{70'000, 80'000, 90'000};
  costs.tasks[size_t(pipeline.copy)].issuing = 2'000;
  costs.tasks[size_t(pipeline.step)].issuing = 4'000;
  costs.lanes[1] = {3'000, 1'500, 9'000};
  costs.lanes[2] = {5'000, 2'500, 9'000};
  for (TaskCosts& task : costs.tasks) task.dispatch = constant(6'000);
  costs.tasks[size_t(pipeline.fill)].dispatch = constant(8'000);
  costs.threads = {2, 2};
  const TraceFile trace = trace_of(pipeline.plan, costs);
  const Costs found = measured(trace);
  CHECK(found.threads == costs.threads);
  CHECK(found.tasks[size_t(pipeline.fill)].dispatch.of(0) == 8'000);
  CHECK(found.tasks[size_t(pipeline.copy)].dispatch.of(0) == 6'000);
  CHECK(found.lanes[1].after_issue == 3'000);
  CHECK(found.lanes[1].notice == 9'000);
  CHECK(found.lanes[2].after_queue == 2'500);
  CHECK(found.tasks[size_t(pipeline.step)].issuing == 4'000);
  for (int64_t n = 0; n < 6; ++n) {
    CHECK(found.tasks[size_t(pipeline.step)].duration.of(n) == costs.tasks[size_t(pipeline.step)].duration.of(n));
  }
  CHECK(iteration_us(pipeline.plan, found) == doctest::Approx(iteration_us(pipeline.plan, costs)));
}

// Two learners whose tasks take `alone` microseconds, and 1 + slowdown times as long while both run; learner 1 pauses
// after each by a different amount, so that overlap varies where `pauses`.
TraceFile two_learners(double alone, double slowdown, bool pauses) {
  Builder builder;
  for (const int32_t learner : {0, 1}) {
    builder.device("learner " + std::to_string(learner) + "/step", 0, builder.lane(Lane::Kind::Compute, 0, learner));
    builder.plan.tasks.back().kind = Task::Kind::Compute;
  }
  TraceFile trace;
  trace.plan = builder.plan;
  struct Learner {
    int64_t instance = 0, started = 0, next = 0;
    double left = 0;
    bool runs = false;
  } learners[2];
  for (int64_t now = 0; learners[0].instance < 200 || learners[1].instance < 200; now += 100) {  // ns
    const bool both = learners[0].runs && learners[1].runs;
    for (int k = 0; k < 2; ++k) {
      Learner& learner = learners[k];
      if (learner.runs) {
        learner.left -= 0.1 / (both ? 1 + slowdown : 1);
        if (learner.left > 1e-9) continue;
        trace.tasks.push_back({k, learner.instance++, learner.started, learner.started, learner.started, now});
        learner.runs = false;
        learner.next = now + (pauses && k == 1 ? (learner.instance * 37 % 80) * 1000 : 0);
      }
      if (now < learner.next) continue;
      learner.runs = true;
      learner.started = now;
      learner.left = alone;
    }
  }
  std::stable_sort(trace.tasks.begin(), trace.tasks.end(),
                   [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
  return trace;
}

TEST_CASE("contention is fitted where overlap varies, and assumed where it does not") {
  for (const double slowdown : {0.0, 0.4, 1.0}) {
    const TraceFile trace = two_learners(50, slowdown, true);
    Scenario scenario{trace.plan, measured(trace)};
    CHECK(scenario.costs.contention[0].fitted);
    CHECK(scenario.costs.contention[0].slowdown == doctest::Approx(slowdown).epsilon(0.1));
    apply(parse_what_if("learners-1"), scenario);
    CHECK(scenario.plan.tasks.size() == 1);
    CHECK(iteration_us(scenario.plan, scenario.costs) == doctest::Approx(50).epsilon(0.05));
  }
  const TraceFile trace = two_learners(50, 0.4, false);
  Scenario scenario{trace.plan, measured(trace)};
  CHECK_FALSE(scenario.costs.contention[0].fitted);
  apply(parse_what_if("learners-1"), scenario);
  CHECK(iteration_us(scenario.plan, scenario.costs) == doctest::Approx(70 / 2.0).epsilon(0.02));
}

TEST_CASE("changes give what the plan gives that is made with them") {
  const auto plan_with = [](int64_t depth, int learners) {
    SessionOptions options = test::on_cpus(2, learners);
    options.epochs = 2;
    test::TinyNet net;
    net.source = "glyphs:?train=1600&test=50&size=16";
    net.depth = depth;
    const Prepared prepared = prepare(test::tiny(net), options);
    return make_plan(prepared.program, prepared.request);
  };
  const auto changed = [&](const char* change) {
    Scenario scenario{plan_with(3, 2), {}};
    scenario.costs = costs_of(scenario.plan);
    apply(parse_what_if(change), scenario);
    CHECK(scenario.costs.tasks.size() == scenario.plan.tasks.size());
    return scenario.plan;
  };
  for (const int64_t depth : {1, 2, 3, 6}) {
    const nlohmann::json expected = plan_record(plan_with(depth, 2));
    CHECK(plan_record(changed(("prefetch.depth=" + std::to_string(depth)).c_str())) == expected);
  }
  // Learners are numbered over all devices, so that of the names only the first device's stay.
  const Plan fewer = changed("learners-1"), expected = plan_with(3, 1);
  REQUIRE(fewer.tasks.size() == expected.tasks.size());
  REQUIRE(fewer.lanes.size() == expected.lanes.size());
  REQUIRE(fewer.edges.size() == expected.edges.size());
  for (size_t i = 0; i < fewer.tasks.size(); ++i) {
    CHECK(fewer.tasks[i].kind == expected.tasks[i].kind);
    CHECK(fewer.tasks[i].lane == expected.tasks[i].lane);
  }
  for (size_t i = 0; i < fewer.edges.size(); ++i) {
    const Edge &a = fewer.edges[i], &b = expected.edges[i];
    CHECK(std::tuple(a.from, a.to, a.distance, a.needs, a.why) == std::tuple(b.from, b.to, b.distance, b.needs, b.why));
  }
}

TEST_CASE("changes of durations and of depth are predicted") {
  const Pipeline pipeline(50, 30, 40, 3, 3);
  const auto after = [&](const char* change) {
    Scenario scenario{pipeline.plan, costs_of(pipeline.plan)};
    apply(parse_what_if(change), scenario);
    return iteration_us(scenario.plan, scenario.costs);
  };
  CHECK(after("prefetch.depth=1") == doctest::Approx(80));
  CHECK(after("source*2") == doctest::Approx(100));
  CHECK(after("source*0.5") == doctest::Approx(40));
  CHECK(after("step*1.5") == doctest::Approx(60));

  const TraceFile trace = trace_of(pipeline.plan, costs_of(pipeline.plan));
  const std::string report = predict(trace, {parse_what_if("prefetch.depth=1"), parse_what_if("source*2")});
  for (const char* part : {"measured                     50.0 µs      20000.0\n",
                           "simulated as it is           50.0 µs      20000.0    +0.0 %",
                           "prefetch.depth=1             80.0 µs      12500.0   +60.0 %  host 62.5 %",
                           "source*2                    100.0 µs      10000.0  +100.0 %  host 100.0 %"}) {
    INFO(part, "\n", report);
    CHECK(contains(report, part));
  }
  TraceFile brief = trace;
  std::erase_if(brief.tasks, [](const TaskSpan& span) { return span.instance > 1; });
  CHECK(contains(message_of([&] { predict(brief, {}); }), "too few iterations"));
}

TEST_CASE("changes that say nothing are refused with what was found and what there is") {
  const auto refusal = [](const char* text) { return message_of([&] { parse_what_if(text); }); };
  for (const auto& [text, part] :
       {std::pair{"prefetch.dept=1",
                  "found 'prefetch.dept'; expected prefetch.depth=N, source*F, learners-N or "
                  "TASK_PATTERN*F; did you mean 'prefetch.depth'?"},
        {"prefetch.depth=0", "found '0' for N, a whole number from 1 to 1024"},
        {"prefetch.depth=", "found '' for N"},
        {"prefetch.depth", "found 'prefetch.depth'"},
        {"learner-1", "did you mean 'learners'?"},
        {"learners-x", "found 'x' for N"},
        {"source*-2", "found '-2' for F, a number above 0"},
        {"source*", "found '' for F"},
        {"step*1e9", "found '1e9' for F"},
        {"step*nan", "found 'nan' for F"},
        {"*2", "found no task before '*'"},
        {"", "found ''"}}) {
    const std::string message = refusal(text);
    INFO(message);
    CHECK(contains(message, part));
  }
  const Pipeline pipeline(50, 30, 40, 3, 3);
  const auto useless = [&](const char* text) {
    Scenario scenario{pipeline.plan, costs_of(pipeline.plan)};
    return message_of([&] { apply(parse_what_if(text), scenario); });
  };
  CHECK(contains(useless("setp*2"), "no task's name contains 'setp'; did you mean 'step'?"));
  CHECK(contains(useless("learners-1"), "cuda:0 has 1 learner, and one has to stay"));
}

// Runs host tasks that sleep, and gives the trace.
TraceFile sleep_through(const Plan& plan) {
  Plan bound = plan;
  Binding binding(bound, {}, nullptr, {});
  TraceRecorder recorder(plan);
  Scheduler::HostFunctions host;
  for (const Task& task : plan.tasks) {
    host.push_back([microseconds = int64_t(task.microseconds)](int64_t) {
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
    });
  }
  SchedulerOptions options;
  options.threads = 4;
  options.trace = &recorder;
  const std::atomic<bool> interrupted{false};
  Scheduler(binding, std::move(host), options).run(interrupted);
  return recorder.collect();
}

TEST_CASE("what is simulated was measured, and what is predicted is measured after the change") {
  const auto plan_with = [](double fill_us, int64_t depth) {
    Builder builder;
    builder.plan.clocks[0].ticks = 50;
    builder.plan.devices.clear();
    const TaskId fill = builder.host("fill", fill_us, int32_t(std::min<int64_t>(depth, 4)));
    const TaskId copy = builder.host("copy", 3000), step = builder.host("step", 8000);
    builder.plan.tasks[size_t(fill)].kind = Task::Kind::Fill;
    builder.plan.tasks[size_t(copy)].kind = Task::Kind::CopyIn;
    builder.edge(fill, copy, 0);
    builder.edge(copy, fill, depth, Edge::Needs::Done, Edge::Why::Reuse);
    builder.edge(copy, step, 0);
    builder.edge(step, copy, 2, Edge::Needs::Done, Edge::Why::Reuse);
    return builder.plan;
  };
  const auto time = [](const TraceFile& trace) {
    return find_steady_state(trace.plan, trace.tasks, SimulationOptions{}.warm_up).iteration_ns;
  };
  const TraceFile trace = sleep_through(plan_with(9000, 3));
  CHECK(trace.threads.host == 4);
  const Scenario scenario{trace.plan, measured(trace)};
  CHECK(simulate(scenario.plan, scenario.costs).steady.iteration_ns == doctest::Approx(time(trace)).epsilon(0.1));

  const auto predicted = [&](const char* change) {
    Scenario changed = scenario;
    apply(parse_what_if(change), changed);
    return simulate(changed.plan, changed.costs).steady.iteration_ns;
  };
  const double shallow = time(sleep_through(plan_with(9000, 1))), slow = time(sleep_through(plan_with(45000, 3)));
  CHECK(shallow > 1.3 * time(trace));
  CHECK(slow > 1.6 * time(trace));
  CHECK(predicted("prefetch.depth=1") == doctest::Approx(shallow).epsilon(0.15));
  CHECK(predicted("source*5") == doctest::Approx(slow).epsilon(0.15));
}

}  // namespace
}  // namespace arbalest
