// SPDX-License-Identifier: Apache-2.0

// Runs whose plan changes on the way: what is carried from one to the next, and where the data go on.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "executor/segment/cursor.h"
#include "executor/segment/segment.h"
#include "executor/session/state.h"
#include "executor/trace/trace_file.h"
#include "graph/file/overrides.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace segments_test {
namespace {

constexpr double kTolerance = 1e-6;

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The setting's run, with a new plan after each of `lengths` iterations.
std::vector<double> in_segments(const Setting& setting, const std::vector<int64_t>& lengths) {
  const SessionOptions options = options_of(setting);
  Prepared prepared = prepare(graph_of(setting), options);
  const StrategyOptions strategy = prepared.request.strategy;
  Recorder story;
  Monitor monitor(prepared.program, options.rules, story);
  Cursor from;
  RunState state;
  ModelState model;
  for (const int64_t length : lengths) {
    prepared.request.iterations = length;
    Segment segment(prepared, options, from, monitor);
    if (state.learners.empty()) segment.start_from(initial_values(prepared, options));
    if (!state.learners.empty()) segment.start_from(state);
    segment.run({}, nullptr);
    REQUIRE(segment.complete());
    from = segment.cursor();
    model = segment.model();
    state = with_learners(segment.state(), size_t(setting.devices), size_t(setting.learners), strategy, strategy);
  }
  TensorFile file;
  const Loop& loop = prepared.program.training();
  append_tensors(file, loop.graph, loop.arenas.weights, model.weights);
  if (loop.arenas.frozen != kNone) append_tensors(file, loop.graph, loop.arenas.frozen, model.frozen);
  return weights_of(file);
}

LearnerState replica(float weight, float velocity) {
  return {bytes_of({weight, -weight}), {}, {bytes_of({velocity, velocity})}};
}

StrategyOptions of(const char* name, double alpha = 0) {
  return {.name = name, .alpha = alpha, .beta = alpha * 2, .momentum = 0};
}

}  // namespace

// The end of an epoch forces averaging, so that a plan that ends there changes nothing.
TEST_CASE("epochs seen are rounded once, so that they reach what is written") {
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    for (int64_t batch = 0; batch < 50; ++batch) {
      const std::string milestone = fmt::format("{}.{:02}", epoch, 2 * batch);  // 1.36
      CAPTURE(milestone);
      CHECK(epochs_seen(epoch, batch, 20, 1000) == std::stod(milestone));
    }
  }
}

TEST_CASE("a run in several plans is the run in one") {
  const std::vector<StrategyOptions> strategies = {{.name = "none"},
                                                   {.name = "ssgd"},
                                                   {.name = "sma", .momentum = 0},
                                                   {.name = "sma", .momentum = 0.9},
                                                   {.name = "sma", .every = 4, .momentum = 0.9},
                                                   {.name = "local", .every = 4},
                                                   {.name = "papa", .every = 4, .alpha = 0.25},
                                                   {.name = "diloco", .every = 4, .beta = 0.7, .momentum = 0.5}};
  for (const StrategyOptions& strategy : strategies) {
    for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 3}, {2, 2}}) {
      Setting setting;
      setting.strategy = strategy;
      setting.devices = devices;
      setting.learners = learners;
      setting.momentum = strategy.momentum > 0 ? 0 : 0.9;
      setting.rate = setting.momentum > 0 ? 0.01 : 0.05;
      setting.milestones = {2, 4.3};  // where the second plan begins, and within the third
      INFO(to_string(setting));
      const std::vector<double> expected = simulated(setting);
      CHECK(greatest_difference(in_segments(setting, {14, 7, 29}), expected) < kTolerance);
      if (strategy.momentum <= 0) {
        Setting adaptive = setting;
        adaptive.momentum = 0;
        adaptive.adamw = true;
        adaptive.hidden = 12;
        adaptive.freeze_hidden = true;
        CHECK(greatest_difference(in_segments(adaptive, {14, 7, 29}), simulated(adaptive)) < kTolerance);
      }
      Setting smoothed = setting;
      smoothed.ema = 0.9;
      CHECK(greatest_difference(in_segments(smoothed, {14, 7, 29}), simulated(smoothed)) < kTolerance);
      if (strategy.name != "ssgd") continue;
      setting.rounds = 8;
      setting.accumulate = 2;
      CHECK(greatest_difference(in_segments(setting, {16, 8, 26}), simulated(setting)) < kTolerance);
    }
  }
}

TEST_CASE("a plan that ends within an epoch leaves the rest of its batches to the next") {
  Setting setting;
  setting.strategy = {.name = "ssgd"};
  setting.devices = 2;
  setting.accumulate = 2;
  setting.rounds = 8;
  setting.iterations = 8;
  const SessionOptions options = options_of(setting);
  Prepared prepared = prepare(graph_of(setting), options);
  Recorder story;
  Monitor monitor(prepared.program, options.rules, story);
  prepared.request.iterations = 5;
  Segment segment(prepared, options, {}, monitor);
  segment.start_from(initial_values(prepared, options));
  segment.run({}, nullptr);
  const Cursor cursor = segment.cursor();  // the fifth iteration's batches made no update yet
  CHECK(cursor.epoch == 0);
  CHECK(cursor.batch == 4 * 2);
  CHECK(cursor.iteration == 4);
  CHECK(cursor.images == 4 * 2 * setting.batch);
}

// 2 devices with `learners` each, batch 5, 1000 samples: 200 batches an epoch.
struct Rest {
  PlanRequest request;
  Cursor from;
  bool left = false;
};

Rest rest_of(int32_t learners, int64_t epochs, int64_t iterations, const Cursor& from, int64_t every = 1,
             int64_t accumulate = 1) {
  Program program;
  program.loops.emplace_back().batch = 5;
  program.accumulate = accumulate;
  program.validate_every = every;
  Rest rest;
  rest.request.devices = cpus(2);
  rest.request.learners = learners;
  rest.request.training_samples = 1000;
  rest.request.rounds = rounds_of(1000, 2 * learners, 5, accumulate);
  rest.request.epochs = epochs;
  rest.request.iterations = iterations;
  rest.from = from;
  rest.left = take_rest(rest.request, rest.from, program);
  return rest;
}

TEST_CASE("what is left of a run is the rest of an epoch, then whole epochs in step with validation") {
  Rest rest = rest_of(3, 10, 0, {.epoch = 4, .batch = 20});
  REQUIRE(rest.left);
  CHECK(rest.request.epochs == 1);
  CHECK(rest.request.rounds == 30);  // 180 batches for 6 learners
  CHECK(rest.request.validates);
  rest = rest_of(3, 10, 0, {.epoch = 5});
  CHECK(rest.request.epochs == 5);
  CHECK(rest.request.rounds == 33);

  // Every 4 epochs: the rest of epoch 5 is not validated, then three epochs up to the 8th, then the others.
  rest = rest_of(3, 10, 0, {.epoch = 4, .batch = 20}, 4);
  CHECK_FALSE(rest.request.validates);
  rest = rest_of(3, 10, 0, {.epoch = 5}, 4);
  CHECK(rest.request.epochs == 3);
  CHECK(rest.request.validates);
  rest = rest_of(3, 10, 0, {.epoch = 8}, 4);
  CHECK(rest.request.epochs == 2);
  rest = rest_of(3, 10, 0, {.epoch = 9, .batch = 20}, 4);  // the last is validated in any case
  CHECK(rest.request.validates);
  rest = rest_of(3, 6, 0, {.epoch = 5}, 4);
  CHECK(rest.request.epochs == 1);
}

TEST_CASE("too little of an epoch for a round is left out, and nothing follows the last") {
  Rest rest = rest_of(3, 10, 0, {.epoch = 4, .batch = 196});
  REQUIRE(rest.left);
  CHECK(rest.from.epoch == 5);
  CHECK(rest.from.batch == 0);
  CHECK(rest.request.epochs == 5);
  CHECK_FALSE(rest_of(3, 5, 0, {.epoch = 4, .batch = 196}).left);
  CHECK_FALSE(rest_of(3, 5, 0, {.epoch = 5}).left);
  CHECK(rest_of(3, 5, 0, {.epoch = 4, .batch = 194}).request.rounds == 1);
  CHECK_FALSE(rest_of(3, 5, 0, {.epoch = 4, .batch = 194}, 1, 2).left);  // two rounds an update
}

TEST_CASE("a run of so many iterations ends with them, whatever the plans before") {
  CHECK(rest_of(1, 1, 500, {.epoch = 3, .iteration = 400}).request.iterations == 100);
  Rest rest = rest_of(1, 1, 500, {.epoch = 3, .batch = 100, .iteration = 430});
  CHECK(rest.request.rounds == 50);
  CHECK(rest.request.iterations == 50);  // to the end of the epoch
  CHECK(rest_of(1, 1, 500, {.epoch = 3, .batch = 100, .iteration = 470}).request.iterations == 30);
  CHECK(rest_of(1, 1, 900, {.epoch = 5, .iteration = 400}, 4).request.iterations == 300);  // three epochs of 100
  CHECK_FALSE(rest_of(1, 1, 500, {.epoch = 3, .iteration = 500}).left);
}

TEST_CASE("replicas take the correction of the last averaging with them") {
  RunState state;
  state.learners = {replica(1, 10), replica(3, 20)};
  state.averages = {{bytes_of({2, -2}), bytes_of({1, -1})}};
  const StrategyOptions sma = of("sma", 0.5);
  const auto next = [&](size_t learners, const StrategyOptions& after) {
    return with_learners(state, 1, learners, sma, after);
  };

  RunState carried = next(2, sma);  // neither an averaging nor an update has been: nothing is asked of anyone
  CHECK(carried.learners[0].correction == 0);

  state.averaged = true;  // of 1 and 3 with what was z then, 1
  carried = next(3, of("sma", 1.0 / 3));
  CHECK(floats_of(carried.learners[1].weights) == std::vector<float>{3, -3});
  CHECK(carried.learners[1].correction == 0.5);
  CHECK(carried.learners[2].correction == 0);
  CHECK(floats_of(carried.learners[1].slots[0]) == std::vector<float>{20, 20});
  CHECK(floats_of(carried.learners[2].weights) == std::vector<float>{2, -2});  // new: z
  CHECK(floats_of(carried.learners[2].slots[0]) == std::vector<float>{0, 0});
  CHECK(carried.averages.at(0).now == state.averages[0].now);
  CHECK(carried.averages.at(0).before == state.averages[0].before);

  state.averaged = false;
  state.unaveraged = state.apart = 1;  // update since: averaged once more, with z = 2
  carried = next(2, sma);
  CHECK(floats_of(carried.averages.at(0).now) == std::vector<float>{2, -2});  // 2 + (1 − 2)/2 + (3 − 2)/2
  CHECK(carried.averages.at(0).before == state.averages[0].now);
  CHECK(carried.learners[0].correction == 0.5);

  carried = next(1, of("none"));  // a single learner goes on from z
  CHECK(floats_of(carried.learners[0].weights) == std::vector<float>{2, -2});
  CHECK(carried.learners[0].correction == 0);
}

TEST_CASE("learners of papa take their share with them, towards their mean") {
  RunState state;
  state.learners = {replica(1, 10), replica(3, 20)};
  state.averages = {{bytes_of({2, -2}), bytes_of({1, -1})}};
  state.averaged = true;
  const StrategyOptions papa = of("papa", 0.25);
  const RunState next = with_learners(state, 1, 3, papa, papa);
  CHECK(floats_of(next.learners[0].weights) == std::vector<float>{1, -1});
  CHECK(next.learners[1].correction == 0.25);
  CHECK(floats_of(next.learners[2].weights) == std::vector<float>{2, -2});
  CHECK(next.learners[2].correction == 0);
  CHECK(floats_of(next.averages.at(0).now) == std::vector<float>{2, -2});
}

TEST_CASE("the outer step goes on with its momentum under another number of learners") {
  RunState state;
  state.learners = {replica(1, 10), replica(3, 20)};
  state.averages = {{bytes_of({2, -2}), bytes_of({1, -1})}};  // z and x
  const StrategyOptions diloco{.name = "diloco", .beta = 0.5, .momentum = 0.5};
  RunState next = with_learners(state, 1, 3, diloco, diloco);
  CHECK(next.averages.at(0).now == state.averages[0].now);
  CHECK(next.averages.at(0).before == state.averages[0].before);
  for (const LearnerState& one : next.learners) CHECK(floats_of(one.weights) == std::vector<float>{2, -2});

  state.learners = {replica(3, 10), replica(5, 20)};
  state.unaveraged = state.apart = 1;
  next = with_learners(state, 1, 3, diloco, diloco);
  CHECK(floats_of(next.averages.at(0).before) == std::vector<float>{3, -3});  // x' = 2 + (4 − 2) / 2
  CHECK(floats_of(next.averages.at(0).now) == std::vector<float>{4, -4});     // z' = x' + (x' − 1) / 2
  for (const LearnerState& one : next.learners) CHECK(floats_of(one.weights) == std::vector<float>{4, -4});

  next = with_learners(state, 1, 2, of("local"), diloco);  // without momentum at first
  CHECK(floats_of(next.averages.at(0).now) == std::vector<float>{4, -4});
  CHECK(next.averages.at(0).before == next.averages.at(0).now);
}

TEST_CASE("hosts that average apart meet where learners or hosts change") {
  RunState state;
  state.learners = {replica(1, 10), replica(3, 20), replica(8, 30)};
  state.learners[2].host = 1;
  state.averages = {{bytes_of({2, -2}), bytes_of({1, -1})}, {bytes_of({8, -8}), bytes_of({7, -7})}};
  const RunState met = with_hosts_met(state);
  REQUIRE(met.averages.size() == 1);
  CHECK(floats_of(met.averages[0].now) == std::vector<float>{4, -4});           // (2 · 2 + 8) / 3
  CHECK(floats_of(met.averages[0].before) == std::vector<float>{3, -3});        // (2 · 1 + 7) / 3
  const std::vector<float> first = {3, -3}, second = {5, -5}, third = {4, -4};  // 1 + (3 − 1), 3 + (3 − 1), 8 + (3 − 7)
  CHECK(floats_of(met.learners[0].weights) == first);
  CHECK(floats_of(met.learners[1].weights) == second);
  CHECK(floats_of(met.learners[2].weights) == third);
  CHECK(met.learners[2].host == 0);
  CHECK(floats_of(shared_model(state, of("sma", 0.5)).weights) == std::vector<float>{4, -4});
  CHECK(floats_of(with_learners(state, 1, 1, of("sma", 0.5), of("none")).learners[0].weights) == third);
  // After an update learners have been corrected by the average before and are next by the one now: 2 → 4 and 8 → 4.
  state.unaveraged = 1;
  state.averages[1].before = bytes_of({4, -4});
  const RunState within = with_hosts_met(state);
  CHECK(floats_of(within.averages[0].before) == std::vector<float>{2, -2});
  CHECK(floats_of(within.learners[0].weights) == first);
  CHECK(floats_of(within.learners[2].weights) == third);
}

TEST_CASE("learners that average gradients stay alike when there are more") {
  RunState state;
  state.learners = {replica(5, 7)};
  const RunState next = with_learners(state, 1, 3, of("none"), of("ssgd"));
  REQUIRE(next.learners.size() == 3);
  for (const LearnerState& one : next.learners) {
    CHECK(one.weights == state.learners[0].weights);
    CHECK(one.slots == state.learners[0].slots);
  }
}

TEST_CASE("learners that are replaced by their mean go on from it") {
  RunState state;
  state.learners = {replica(1, 10), replica(3, 20)};
  state.unaveraged = state.apart = 1;
  const StrategyOptions local = of("local");
  const RunState next = with_learners(state, 1, 3, local, local);
  for (const LearnerState& one : next.learners) CHECK(floats_of(one.weights) == std::vector<float>{2, -2});
}

// However far the tuner gets, and wherever the run ends meanwhile.
TEST_CASE("with learners found while training every run comes to its end") {
  const TestFolder folder;
  TinyNet net;
  net.batch = 50;
  net.train = "lr = 0.0001, ema = 0.9";
  int grown = 0;  // of the runs of five epochs
  for (const int64_t reports : {1, 2, 5, 9, 16}) {
    for (const int64_t iterations : {0, 40, 67, 96}) {
      const int64_t samples = iterations == 0 ? 12000 : 2400;  // whole runs leave time for a decision
      net.source = fmt::format("synthetic:?shape=1x16x16&classes=10&size={}&test=100", samples);
      SessionOptions options = on_cpus();
      options.learners.per_device = 0;
      options.learners.tuning = {.threshold = -1,
                                 .warmup_seconds = 0,
                                 .warmup_reports = reports,
                                 .window_seconds = 0,
                                 .steadiness = 0,
                                 .most_windows = 1,
                                 .most_learners = 8};  // always more, soon
      options.execution.report_every = 1;
      options.length.epochs = 5;
      if (iterations > 0) options.length.iterations = iterations;
      options.files.save = folder / "weights.safetensors";
      options.files.trace = folder / "run.json.gz";
      options.execution.sample_ms = 0;
      INFO("a decision after ", reports, " reports, ", iterations, " iterations");
      const Recorder story = run(tiny(net), options);
      REQUIRE(story.ends.size() == 1);
      CHECK(story.ends[0].reason == RunEnd::Complete);
      CHECK(story.tunings.size() >= 1);
      if (iterations > 0) CHECK(story.ends[0].iteration == iterations);
      if (iterations == 0) CHECK(story.ends[0].epoch == 5);
      if (iterations == 0) CHECK(story.validations.size() == 5);
      CHECK(read_safetensors(options.files.save).find("logits.weight"));
      const TraceFile trace = read_trace(options.files.trace);
      CHECK(trace.run.begins == (trace.run.iterations > 0 ? SegmentBegin::Tuned : SegmentBegin::Run));
      // A decision may come too late for the run, on a machine that has other work: not in all of them. Or with too few
      // batches left of an epoch, and then of the run, for a round of two learners: one ends it.
      const bool grew = story.ends[0].learners > 1;
      CHECK((!grew || trace.run.iterations > 0));
      if (!grew && trace.run.iterations > 0) CHECK(story.ends[0].iteration == trace.run.iterations + 1);
      grown += iterations == 0 && grew;
      CHECK(trace.run.first == trace.run.iterations);
      CHECK(trace.run.learners == story.ends[0].learners);
      CHECK(trace.run.ended_after == story.ends[0].iteration);
      int64_t last = 0;
      for (const TaskSpan& span : trace.tasks) {
        if (trace.plan.tasks[span.task].clock == 0) last = std::max(last, span.instance);
      }
      CHECK(trace.run.first + last + 1 == story.ends[0].iteration);
    }
  }
  CHECK(grown > 0);
}

}  // namespace segments_test
