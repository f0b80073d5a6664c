// SPDX-License-Identifier: Apache-2.0

// The verdict, slack, layers and what pays, of traces whose answer is known.

#include "executor/trace/verdict.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "executor/plan/slack.h"
#include "executor/trace/layer_times.h"
#include "executor/trace/simulate.h"
#include "executor/trace/what_pays.h"
#include "tests/executor/fixture.h"
#include "tests/executor/trace/simulate_fixture.h"
#include "tests/executor/trace/trace_fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace verdict_test {
namespace {

const IdleShare* share_of(const TraceSummary& summary, LaneId lane, IdleCause cause) {
  for (const LaneSummary& known : summary.lanes) {
    if (known.lane != lane) continue;
    for (const IdleShare& share : known.causes) {
      if (share.cause == cause) return &share;
    }
  }
  return nullptr;
}

// Iterations of 100 µs: the step takes `step`, the fill what is left before the copy of 5 µs.
TraceFile with_step(int64_t step, int64_t iterations = 40) {
  TraceFile trace;
  trace.plan = small_plan();
  trace.plan.tasks[0].learner = 0;
  for (int64_t i = 0; i < iterations; ++i) {
    const int64_t at = i * 100'000, copy = at + 95'000 - step;
    trace.tasks.push_back({0, i, at + 1'000, at + 1'000, at + 1'000, copy});
    trace.tasks.push_back({1, i, copy, copy, copy, copy + 5'000});
    trace.tasks.push_back({2, i, copy + 5'000, copy + 5'000, copy + 5'000, at + 100'000});
  }
  return trace;
}

struct Wait {
  int64_t iteration = 0, ns = 0;
  TaskId task = 0;  // that takes so much longer
};

// Iterations of 100 µs, nearly all of them computing, and waits besides.
TraceFile with_waits(int64_t iterations, int64_t epoch, const std::vector<Wait>& waits) {
  TraceFile trace = with_step(94'000, iterations);
  trace.plan.relations[0] = {0, 1, std::min<int64_t>(10, epoch), epoch};
  for (TaskSpan& span : trace.tasks) {
    int64_t before = 0;
    for (const Wait& wait : waits) before += span.instance > wait.iteration ? wait.ns : 0;
    for (int64_t* time : {&span.ready, &span.issued, &span.started, &span.ended}) *time += before;
    for (const Wait& wait : waits) {
      if (span.instance != wait.iteration || span.task < wait.task) continue;
      if (span.task != wait.task) span.ready += wait.ns, span.issued += wait.ns, span.started += wait.ns;
      span.ended += wait.ns;
    }
  }
  return trace;
}

std::string sentence_of(const TraceFile& trace) {
  return judge(trace, analyze(trace)).sentence;
}

}  // namespace

TEST_CASE("idle time is counted by kind of cause") {
  const TraceFile trace = with_step(40'000);
  const TraceSummary summary = analyze(trace);
  const IdleShare* input = share_of(summary, 2, IdleCause::Input);
  REQUIRE(input != nullptr);
  CHECK(input->ns == 39 * 55'000);
  CHECK(input->count == 39);
  CHECK(input->steady_count == 35);
  CHECK(input->to - input->from == 60'000);
  CHECK(input->next->task == TaskId(2));
  const IdleShare* copy = share_of(summary, 2, IdleCause::Copy);
  REQUIRE(copy != nullptr);
  CHECK(copy->ns == 39 * 5'000);
  for (const LaneSummary& lane : summary.lanes) {
    int64_t sum = 0;
    for (const IdleShare& share : lane.causes) sum += share.ns;
    CHECK(sum == lane.idle_ns);
  }
}

TEST_CASE("a run that waits for its input is bound by it") {
  const TraceFile trace = with_step(40'000);
  const Verdict verdict = judge(trace, analyze(trace));
  INFO(verdict.sentence);
  CHECK(contains(verdict.sentence, "Bound by input: cuda:0 computes 4"));
  CHECK(contains(verdict.sentence, "input late for 35 of 36 batches"));
  REQUIRE(verdict.figures.size() == 3);
  CHECK(verdict.figures[1].value == "35 of 36");
  CHECK(verdict.figures[1].where == VerdictFigure::Where::Idle);
  CHECK(verdict.figures[1].id == 2);
}

TEST_CASE("a few long waits are not what bounds a run, and are told apart") {
  TraceFile trace = with_waits(240, 1000, {{120, 2'000'000}});
  const Verdict once = judge(trace, analyze(trace));
  INFO(once.sentence);
  CHECK(contains(once.sentence, "Bound by compute on cuda:0, busy 9"));
  CHECK(contains(once.sentence, "; not counting 1 long wait, 2.00 ms in all, because the next batch was not read yet"));
  CHECK(once.figures[0].text == "of the time cuda:0 computes, a few long waits apart");

  std::vector<Wait> often;
  for (int64_t iteration = 4; iteration < 236; iteration += 4) often.push_back({iteration, 500'000});
  CHECK(contains(sentence_of(with_waits(240, 1000, often)), "Bound by input: "));
  // A wait that comes with each validation is the plan's.
  trace = with_waits(240, 1000, {{120, 30'000'000}});
  trace.plan.lanes[0].kind = Lane::Kind::Validate;
  trace.plan.tasks[0].kind = Task::Kind::Work;
  CHECK(contains(sentence_of(trace), "Bound by validation: "));
  // A hundred iterations have one.
  CHECK(contains(sentence_of(with_waits(112, 1000, {{60, 4'000'000}})), "; not counting 1 long wait, "));
  const std::string brief = sentence_of(with_waits(40, 1000, {{20, 4'000'000}}));
  CHECK(contains(brief, "Bound by input: "));
  CHECK_FALSE(contains(brief, "not counting"));
}

TEST_CASE("a wait that each epoch begins with is what bounds a run") {
  const auto told = [](const std::vector<Wait>& waits) { return sentence_of(with_waits(450, 150, waits)); };
  for (const int64_t first : {150, 156}) {
    const std::string sentence = told({{first, 20'000'000}, {first + 150, 20'000'000}});
    CHECK(contains(sentence, "Bound by input: "));
    CHECK_FALSE(contains(sentence, "not counting"));
  }
  CHECK(
      contains(told({{157, 20'000'000}, {307, 20'000'000}}), "; not counting 2 long waits, 40.0 ms in all, because "));
  CHECK(contains(told({{30, 20'000'000}}), "; not counting 1 long wait, 20.0 ms in all, because "));
  CHECK(contains(told({{80, 20'000'000}, {150, 1'000'000}}), "; not counting 1 long wait, 20.0 ms in all, because "));
}

TEST_CASE("long waits are counted and summed by cause, and learners that wait together have one") {
  TraceFile trace = with_waits(450, 1000, {{100, 2'000'000}, {200, 2'995'000, 1}});
  trace.plan.lanes.push_back({Lane::Kind::Compute, 0, 1, "cuda:0/learner 1"});
  trace.plan.tasks.push_back(trace.plan.tasks[2]);
  trace.plan.tasks[4].lane = 3;
  trace.plan.edges.push_back({1, 4, 0, kNone, Edge::Needs::Issued, Edge::Why::Data, "batch"});
  trace.plan.edges.push_back({4, 4, 1, kNone, Edge::Needs::Issued, Edge::Why::Self, ""});
  for (const TaskSpan& span : std::vector<TaskSpan>(trace.tasks)) {
    if (span.task != 2) continue;
    trace.tasks.push_back(span);
    trace.tasks.back().task = 4;
  }
  sort_by_start(trace);
  const std::string sentence = sentence_of(trace);
  INFO(sentence);
  CHECK(contains(sentence, "; not counting 1 long wait, 3.00 ms in all, because "));
  CHECK(contains(sentence, ", and 1 long wait, 2.00 ms in all, because the next batch was not read yet"));
}

TEST_CASE("a run that computes all the time is bound by that, and its costliest layer is named") {
  TraceFile trace = with_step(94'000);
  for (const TaskSpan& span : std::vector<TaskSpan>(trace.tasks)) {
    if (span.task != 2) continue;
    trace.nodes.push_back({0, 2, span.instance, span.started, span.started + 20'000});
    trace.nodes.push_back({1, 2, span.instance, span.started + 20'000, span.started + 30'000});
    trace.nodes.push_back({2, 2, span.instance, span.started + 30'000, span.started + 80'000});
  }
  trace.launches = {"conv1", "fc", "conv1.grad_weight"};
  const Verdict verdict = judge(trace, analyze(trace));
  INFO(verdict.sentence);
  CHECK(contains(verdict.sentence, "Bound by compute on cuda:0, busy 9"));
  CHECK(contains(verdict.sentence, "the costliest layer, conv1, takes 88 % of it"));

  const std::vector<LayerTime> layers = layer_times(trace);
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].name == "conv1");
  CHECK(layers[0].forward_ns == 40 * 20'000);
  CHECK(layers[0].backward_ns == 40 * 50'000);
  CHECK(layer_of("a.grad").gradient);
  CHECK(layer_of("a.gradual").layer == "a.gradual");
  CHECK(layer_of("a.bn again").layer == "a.bn");  // in the backward pass
  CHECK(layer_of("a.bn again").gradient);
  CHECK(layer_of(".grad_x").layer == ".grad_x");
}

TEST_CASE("where nodes were timed after the run, steps are divided as these times are") {
  TraceFile trace = with_step(94'000);
  trace.launches = {"conv1", "fc", "conv1.grad_weight"};
  trace.timed = {{0, 2, 10'000}, {1, 2, 10'000}, {2, 2, 20'000}};
  CHECK(contains(judge(trace, analyze(trace)).sentence, "the costliest layer, conv1, takes 75 % of it"));
  const std::vector<LayerTime> layers = layer_times(trace);
  REQUIRE(layers.size() == 2);
  CHECK(layers[0].name == "conv1");
  CHECK(layers[0].forward_ns == 40 * 94'000 / 4);
  CHECK(layers[0].backward_ns == 40 * 94'000 / 2);
  CHECK(layers[1].total_ns() == 40 * 94'000 / 4);
  CHECK(contains(summarize(trace), "conv1"));

  trace.nodes = {{1, 2, 39, 3'900'000, 3'940'000}};  // what was recorded counts, even if older spans are gone
  const auto shares = node_shares(trace);
  REQUIRE(shares[2].size() == 1);
  CHECK(shares[2][0].share == doctest::Approx(40.0 / 94));
}

TEST_CASE("what pays knows the costliest layers") {
  TraceFile trace = steady_trace();
  trace.launches = {"conv1", "fc", "conv1.grad_weight"};
  trace.timed = {{0, 2, 10'000}, {1, 2, 10'000}, {2, 2, 20'000}};
  const WhatPays pays = what_pays(trace);
  const auto saved = [&](const std::string& change) {
    const auto found =
        std::find_if(pays.changes.begin(), pays.changes.end(), [&](const Payoff& one) { return one.change == change; });
    REQUIRE(found != pays.changes.end());
    CHECK(found->tasks == std::vector<TaskId>{2});
    return found->saved;
  };
  const double conv = saved("conv1 twice as fast"), fc = saved("fc twice as fast"), step = saved("step twice as fast");
  CHECK(fc > 0);
  CHECK(conv > fc);
  CHECK(step >= conv);
}

TEST_CASE("a batch that has been read in time is not late, even where the device waits for its copy") {
  TraceFile trace = steady_trace();
  trace.plan.tasks[0].learner = 0;
  for (TaskSpan& span : trace.tasks) {
    if (span.task == 0) span.ended = span.started = span.started - 1'000;
  }
  const Verdict verdict = judge(trace, analyze(trace));
  INFO(verdict.sentence);
  CHECK(contains(verdict.sentence, "input never late"));
  CHECK(contains(verdict.sentence, "Bound by copies to the device"));
}

TEST_CASE("what the model cannot tell is the greater of how far it is off and of what nothing changes") {
  TraceFile trace = with_step(40'000);
  for (TaskSpan& span : trace.tasks) {  // fills of very different lengths, whose order matters
    if (span.task == 0 && span.instance % 3 != 0) span.started = span.issued = span.ready = span.ended - 1'000;
  }
  WhatPays pays = what_pays(trace);
  CHECK(pays.spread > 0.002);
  CHECK(pays.error() >= pays.spread);
  CHECK(pays.error() >= std::abs(pays.simulated_ns / pays.measured_ns - 1));
  pays.spread = 0.5;
  CHECK(pays.error() == 0.5);
}

TEST_CASE("a verdict tells how the run ended, and where in it the trace begins") {
  using Notes = std::vector<std::string>;
  CHECK(notes_on({}).empty());
  TracedRun run;
  run.ended = RunEnd::Failed;
  run.message = "the loss is no longer finite";
  CHECK(notes_on(run) == Notes{"The run failed: the loss is no longer finite."});
  run.ended_after = 3;
  run.ended = RunEnd::Interrupted;
  run.message = "SIGINT";
  CHECK(notes_on(run) == Notes{"The run was interrupted by SIGINT after 3 iterations."});
  run.message = "";
  CHECK(notes_on(run) == Notes{"The run was interrupted after 3 iterations."});
  run.ended = RunEnd::Complete;
  run.ended_after = 1;
  CHECK(notes_on(run) == Notes{"The run was complete after 1 iteration."});
  run = {.learners = 4, .iterations = 480, .first = 480, .begins = SegmentBegin::PlannedAnew};
  CHECK(notes_on(run) == Notes{"The trace begins after 480 iterations of the run, where it was planned anew, with 4 "
                               "learners on each device; its iteration 0 is the run's 480, counted from 0."});
  run.begins = SegmentBegin::Tuned;
  CHECK(contains(notes_on(run)[0], "where it was planned anew by --learners auto, with"));
  run.first = 0;
  run.begins = SegmentBegin::Resumed;
  CHECK(notes_on(run) == Notes{"The trace begins after 480 iterations of the run, where it was resumed from a "
                               "checkpoint, with 4 learners on each device."});
  TraceFile trace = with_step(40'000);
  trace.run = run;
  CHECK(judge(trace, analyze(trace)).notes == notes_on(run));
  CHECK(contains(summarize(trace), notes_on(run)[0] + "\n"));
}

TEST_CASE("what S-SGD does to agree is not called averaging") {
  TraceFile trace = with_step(40'000);
  trace.plan.lanes[1].kind = Lane::Kind::Averaging;
  trace.plan.tasks[0].kind = Task::Kind::Work;
  const auto told = [&] {
    const TraceSummary summary = analyze(trace);
    return judge(trace, summary).sentence + summarize(trace) + in_words(IdleCause::Averaging, trace.run);
  };
  CHECK(contains(told(), "; averaging 0 % hidden"));
  trace.run.strategy = "ssgd";
  CHECK(contains(told(), "; summing gradients 0 % hidden"));
  CHECK_FALSE(contains(told(), "averag"));

  trace.plan.lanes[0].kind = Lane::Kind::Collectives;  // the figure leads to the lane that does most of it
  std::swap(trace.plan.tasks[0].lane, trace.plan.tasks[1].lane);
  const Verdict verdict = judge(trace, analyze(trace));
  CHECK(verdict.figures[1].id == 1);
  CHECK(verdict.figures[1].text == "of summing gradients ran while its device computed");
}

// The report of an iteration frees what the next step writes, and finds no thread, for fills have both.
TEST_CASE("a run whose threads are all reading is bound by input, whatever waits for a thread") {
  TraceFile trace;
  trace.plan = small_plan();
  trace.plan.tasks[0].learner = 0;
  trace.plan.tasks[3].clock = 0;
  trace.plan.edges[7] = {2, 3, 0, kNone, Edge::Needs::Done, Edge::Why::Data, "tally"};
  trace.plan.edges.push_back({3, 2, 1, kNone, Edge::Needs::Done, Edge::Why::Reuse, "tally"});
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t at = i * 100'000;
    trace.tasks.push_back({0, i, at - 200'000, at - 200'000, at - 200'000, at - 10'000});
    trace.tasks.push_back({1, i, at - 10'000, at - 10'000, at - 10'000, at - 5'000});
    trace.tasks.push_back({2, i, at, at, at, at + 20'000});
    trace.tasks.push_back({3, i, at + 20'000, at + 99'000, at + 99'000, at + 100'000});
  }
  const TraceSummary summary = analyze(trace);
  const IdleShare* thread = share_of(summary, 2, IdleCause::Reading);
  REQUIRE(thread != nullptr);
  CHECK(thread->ns == 38 * 79'000);  // at the end one thread reads
  const Verdict verdict = judge(trace, summary);
  INFO(verdict.sentence);
  CHECK(contains(verdict.sentence, "Bound by input: cuda:0 computes 2"));
  CHECK(contains(verdict.sentence, "because all threads of the host were reading batches; input late for 35 of 36"));
  CHECK(verdict.figures[1].text == "batches came late, which cost 79 % of the time");

  for (TaskSpan& span : trace.tasks) {  // if one thread reads half of the time, the report's only has to wake
    if (span.task == 0) span.started = span.ended - 50'000;
  }
  const TraceSummary free = analyze(trace);
  CHECK(share_of(free, 2, IdleCause::Reading) == nullptr);
  CHECK(contains(judge(trace, free).sentence, "because no thread of the host was free; input never late"));
}

TEST_CASE("a trace of two instances has a verdict too") {
  TraceFile trace = steady_trace();
  trace.tasks.resize(3);
  const Verdict verdict = judge(trace, analyze(trace));
  CHECK(!verdict.sentence.empty());
  trace.tasks.resize(1);  // a fill
  CHECK(contains(judge(trace, analyze(trace)).sentence, "Nothing computes"));
}

TEST_CASE("slack is by how much a task may grow before the bound does") {
  for (const double copy : {5.0, 30.0, 79.0}) {
    Plan plan = small_plan();
    plan.tasks[0].microseconds = 40;
    plan.tasks[1].microseconds = copy;
    plan.tasks[2].microseconds = 80;
    const Cycle critical = critical_cycle(plan);
    const Slack slack = slack_of(plan, critical);
    CHECK(slack.tasks[2] == doctest::Approx(0));
    for (const TaskId task : plan.tasks.ids()) {
      const double spare = slack.tasks[task];
      REQUIRE(spare >= 0);
      Plan longer = plan;
      longer.tasks[task].microseconds += spare;
      CHECK(critical_cycle(longer).bound() == doctest::Approx(critical.bound()));
      longer.tasks[task].microseconds += 4;
      CHECK(critical_cycle(longer).bound() > critical.bound() * 1.001);
    }
  }
  CHECK(slack_of(small_plan(), {}).tasks[0] > 1e300);
}

TEST_CASE("what pays is what what-if says, the best first") {
  const TraceFile trace = with_step(40'000);
  WhatPays pays = what_pays(trace);
  REQUIRE(pays.measured_ns == doctest::Approx(100'000));
  for (size_t i = 1; i < pays.changes.size(); ++i) CHECK(pays.changes[i - 1].saved >= pays.changes[i].saved);
  const auto find = [&](Payoff::Kind kind, TaskId task) {
    const auto found = std::find_if(pays.changes.begin(), pays.changes.end(), [&](const Payoff& change) {
      return change.kind == kind && change.tasks.front() == task;
    });
    REQUIRE(found != pays.changes.end());
    return *found;
  };
  CHECK(find(Payoff::Kind::Removed, 0).saved >= find(Payoff::Kind::Halved, 0).saved);
  CHECK(find(Payoff::Kind::Removed, 2).iteration_ns < pays.simulated_ns * 1.001);
  CHECK(pays.spread == doctest::Approx(0).epsilon(1e-3));  // all instances are alike
  CHECK(pays.error() == doctest::Approx(std::abs(pays.simulated_ns / pays.measured_ns - 1)));
  CHECK(find(Payoff::Kind::SlotMore, 0).change == "prefetch.depth: 4 instead of 3");
  CHECK(find(Payoff::Kind::SlotMore, 1).change == "batch slot of copy: 3 slots instead of 2");
  CHECK(find(Payoff::Kind::SlotLess, 0).change == "prefetch.depth: 2 instead of 3");

  TraceFile without = trace;  // a batch ahead: the step frees the slot
  for (Edge& edge : without.plan.edges) {
    if (edge.to == 0 && edge.why == Edge::Why::Reuse) edge = {2, 0, 1, kNone, edge.needs, edge.why, edge.what};
  }
  pays = what_pays(without);
  CHECK(find(Payoff::Kind::SlotMore, 0).change == "prefetch.depth: 1 instead of 0");

  Task part;
  part.kind = Task::Kind::Fill;
  part.name = "cuda:0/learner 3/fill 12";
  CHECK(kind_of(part) == "cuda:*/learner */fill");
  part.name = "cuda:0/learner 3/fill";
  CHECK(kind_of(part) == "cuda:*/learner */fill");

  TraceFile brief = trace;
  brief.tasks.resize(9);
  CHECK(what_pays(brief).measured_ns == 0);
}

}  // namespace verdict_test
