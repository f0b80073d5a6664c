// SPDX-License-Identifier: Apache-2.0

// The moving average of the weights, which validation and files have if Train asks for it, against its equation in
// double precision.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "executor/inference/inference.h"
#include "executor/plan/make_plan.h"
#include "executor/segment/segment.h"
#include "executor/trace/trace_file.h"
#include "graph/file/overrides.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace moving_average_test {
namespace {

constexpr double kTolerance = 1e-6;

const std::vector<StrategyOptions> kStrategies = {{.name = "none"},
                                                  {.name = "ssgd"},
                                                  {.name = "sma", .momentum = 0},
                                                  {.name = "sma", .every = 4, .momentum = 0},
                                                  {.name = "local", .every = 4},
                                                  {.name = "papa", .every = 4, .alpha = 0.25},
                                                  {.name = "diloco", .every = 4, .beta = 0.7, .momentum = 0.5}};
const std::vector<std::pair<int, int>> kLayouts = {{1, 1}, {1, 2}, {2, 1}, {2, 2}};  // devices, learners of each

// Epochs of 7 iterations: of 4 updates that make a group the second group of an epoch has 3.
Setting setting_of(const StrategyOptions& strategy, int devices, int learners, double decay) {
  Setting setting;
  setting.strategy = strategy;
  setting.devices = devices;
  setting.learners = learners;
  setting.momentum = 0.9;
  setting.rate = 0.01;
  setting.ema = decay;
  return setting;
}

void check_against_simulation(const Setting& setting) {
  INFO(to_string(setting));
  CHECK(greatest_difference(executed(setting), simulated(setting)) < kTolerance);
}

std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Validated evaluated(const Graph& graph, SessionOptions options, const std::string& weights) {
  options.files = {};
  options.files.weights = weights;
  options.rules = {};
  return Inference(graph, options, {}).run();
}

}  // namespace

TEST_CASE("what is saved is the moving average of the weights, as the equation says") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& [devices, learners] : kLayouts) {
      for (const double decay : {0.3, 0.9, 0.9999}) {
        Setting setting = setting_of(strategy, devices, learners, decay);
        check_against_simulation(setting);
        setting.milestones = {2.4, 4};  // SMA restarts; its average goes on
        setting.accumulate = 2;
        check_against_simulation(setting);
      }
    }
  }
}

TEST_CASE("a moving average may end anywhere in a group") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (int64_t iterations = 1; iterations <= 12; ++iterations) {
      Setting setting = setting_of(strategy, 1, 2, 0.8);
      setting.rounds = 9;
      setting.iterations = iterations;
      check_against_simulation(setting);
    }
  }
}

TEST_CASE("what is compared tells averages from weights, and decays from each other") {
  for (const StrategyOptions& strategy : kStrategies) {
    std::vector<std::vector<double>> models;
    for (const double decay : {0.0, 0.3, 0.9}) models.push_back(simulated(setting_of(strategy, 1, 2, decay)));
    for (size_t a = 0; a < models.size(); ++a) {
      for (size_t b = 0; b < a; ++b) CHECK(greatest_difference(models[a], models[b]) > 100 * kTolerance);
    }
  }
}

TEST_CASE("after the first update the moving average is the weights, to the bit") {
  for (const StrategyOptions& strategy : kStrategies) {
    Setting setting = setting_of(strategy, 1, 2, 0.999);
    setting.iterations = strategy.every;
    const auto bits = [&] { return bits_of(trained(graph_of(setting), options_of(setting))); };
    const Bits average = bits();
    setting.ema = 0;
    CHECK(average == bits());
  }
}

TEST_CASE("training itself does not notice the moving average") {
  for (const StrategyOptions& strategy : kStrategies) {
    Setting setting = setting_of(strategy, 2, 2, 0);
    SessionOptions options = options_of(setting);
    options.numerics.deterministic = true;
    const double plain = run(graph_of(setting), options).epochs.back().loss;
    setting.ema = 0.9;
    CHECK(run(graph_of(setting), options).epochs.back().loss == plain);
  }
}

TEST_CASE("validation is of the moving average on every device") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& [devices, learners] : kLayouts) {
      Setting setting = setting_of(strategy, devices, learners, 0.9);
      setting.hidden = 12;
      setting.freeze_hidden = learners == 2;
      setting.test_samples = 61;
      setting.iterations = 4 * setting.rounds;
      setting.milestones = {2};  // averaging starts again while validation reads its model
      check_validations(setting, 1e-5);
    }
  }
}

TEST_CASE("a file with the moving average is evaluated as the last validation saw it, the best one as the best") {
  for (const Precision precision : {Precision::Fp32, Precision::Bf16}) {
    for (const int devices : {1, 2}) {
      for (const int64_t recalibrate : {0, 3}) {
        INFO(name_of(precision), " on ", devices, ", recalibrating by ", recalibrate);
        const TestFolder folder;
        TinyNet net = convolutional();
        net.train += ", ema = 0.95";
        SessionOptions options = on_cpus(devices);
        options.numerics.precision = precision;
        options.length.epochs = 3;
        options.rules.recalibrate = recalibrate;
        options.files.save = folder / "last.safetensors";
        options.files.save_best = folder / "best.safetensors";
        const Recorder story = run(tiny(net), options);
        REQUIRE(story.validations.size() == 3);
        const double last = story.validations.back().loss;
        CHECK(evaluated(tiny(net), options, options.files.save).loss == doctest::Approx(last).epsilon(1e-12));
        const int64_t best = story.ends.at(0).best_epoch;
        REQUIRE(best >= 1);
        CHECK(evaluated(tiny(net), options, options.files.save_best).loss ==
              doctest::Approx(story.validations[size_t(best - 1)].loss).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("moving averages have the same bits each time") {
  for (const StrategyOptions& strategy : kStrategies) {
    Setting setting = setting_of(strategy, 2, 2, 0.9);
    setting.test_samples = 20;
    SessionOptions options = options_of(setting);
    options.numerics.deterministic = true;
    const auto bits = [&] { return bits_of(trained(graph_of(setting), options)); };
    CHECK(bits() == bits());
  }
}

TEST_CASE("where the number of learners changes the moving average goes on") {
  Setting setting = setting_of({.name = "sma", .momentum = 0}, 1, 1, 0.9);
  setting.rounds = 8;
  SessionOptions options = options_of(setting);
  const Graph graph = graph_of(setting);
  Recorder story;
  Prepared alone = prepare(graph, options);
  Monitor monitor(alone.program, options.rules, story);
  alone.request.iterations = 5;
  Segment first(alone, options, {}, monitor);
  first.start_from(initial_values(alone, options));
  first.run({}, nullptr);
  const MovingAverage before = first.state().moving_average;
  CHECK(before.updates == 5);

  options.learners.per_device = 2;
  Prepared both = prepare(graph, options);
  both.request.iterations = 1;
  const StrategyOptions none = alone.request.strategy, sma = both.request.strategy;
  REQUIRE(sma.name == "sma");
  Segment second(both, options, {.epoch = 1}, monitor);
  second.start_from(with_learners(first.state(), 1, 2, none, sma));
  second.run({}, nullptr);
  const RunState after = second.state();
  CHECK(after.moving_average.updates == 6);
  const std::vector<float> e = floats_of(before.weights), z = floats_of(after.averages.at(0).now),
                           moved = floats_of(after.moving_average.weights);
  REQUIRE(moved.size() == e.size());
  const double share = (1 - 0.9) / (1 - std::pow(0.9, 6));
  for (size_t i = 0; i < e.size(); ++i) {
    REQUIRE(double(moved[i]) == doctest::Approx(e[i] + share * (double(z[i]) - e[i])).epsilon(1e-6));
  }
  CHECK(second.model().weights == after.moving_average.weights);
  CHECK(with_learners(after, 1, 1, sma, none).moving_average.weights == after.moving_average.weights);
}

TEST_CASE("a segment that ends within a group leaves its moving average caught up") {
  const auto bytes = [](float value) {
    std::vector<std::byte> made(sizeof value);
    std::memcpy(made.data(), &value, sizeof value);
    return made;
  };
  RunState state;
  state.learners = {{bytes(4), {}, {}}, {bytes(8), {}, {}}};
  state.averages = {{bytes(5), bytes(5)}};
  state.moving_average = {0.5, bytes(2), 1};
  state.unaveraged = state.apart = 2;
  const StrategyOptions sma{.name = "sma", .every = 4, .alpha = 0.5, .beta = 1, .momentum = 0};
  const RunState next = with_learners(state, 1, 3, sma, sma);
  CHECK(next.moving_average.updates == 3);
  CHECK(next.moving_average.decay == 0.5);
  // z = 6 and a share of (1 - 1/4) / (1 - 1/8).
  CHECK(floats_of(next.moving_average.weights)[0] == doctest::Approx(2 + 6.0 / 7 * 4).epsilon(1e-6));
  CHECK(next.unaveraged == 0);
}

TEST_CASE("memory of moving averages is planned on devices that validate") {
  for (const auto& [name, averages] : {std::pair{std::string("none"), 1}, {"ssgd", 2}}) {
    Setting setting = setting_of({.name = name}, 2, 2, 0.9);
    const auto planned = [&] {
      const Prepared prepared = prepare(graph_of(setting), options_of(setting));
      return make_plan(prepared.program, prepared.request);
    };
    const Plan with = planned();
    setting.ema = 0;
    const Plan without = planned();
    const int64_t weights = with.buffers[with.handles.moving_averages.at(0).weights].bytes;
    CHECK(with.handles.moving_averages.size() == size_t(averages));
    CHECK(without.handles.moving_averages.empty());
    for (int32_t device = 0; device < 2; ++device) {
      const int64_t more = planned_bytes(with, device) - planned_bytes(without, device);
      CHECK(more == (device < averages ? (weights + 255) / 256 * 256 + 256 : 0));
    }
    CHECK(contains(print_plan(with), "cpu:0/moving average"));
    CHECK(contains(print_plan(with), "arbalest.MovingAverage"));
    CHECK_FALSE(contains(print_plan(without), "moving average"));
    CHECK(with.tasks.size() == without.tasks.size());
  }
}

TEST_CASE("a trace shows each step of a moving average") {
  const TestFolder folder;
  for (const auto& [name, iterations] : {std::pair{std::string("ssgd"), 14}, {"sma", 4}}) {
    Setting setting = setting_of({.name = name, .every = name == "sma" ? 4 : 1, .momentum = 0}, 1, 2, 0.9);
    setting.iterations = 14;
    SessionOptions options = options_of(setting);
    options.files.trace = folder / "run.json.gz";
    run(graph_of(setting), options);
    const TraceFile trace = read_trace(options.files.trace);
    int64_t steps = 0;
    for (const NodeSpan& span : trace.nodes) steps += trace.launches[size_t(span.launch)] == "cpu:0/moving average";
    CHECK(steps == iterations);
  }
}

TEST_CASE("a decay that is none is refused") {
  for (const char* decay : {"1", "1.5", "-0.1"}) {
    CHECK(contains(message_of([&] {
                     Graph graph = tiny({});
                     apply_override(graph, std::string("train.ema=") + decay);
                     run(std::move(graph), on_cpus());
                   }),
                   std::string("attribute 'ema' is ") + decay + "; expected "));
  }
}

}  // namespace moving_average_test
