// SPDX-License-Identifier: Apache-2.0

// Tests which models are validated and saved with several learners and devices, and the decisions of validations.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "executor/segment/segment.h"
#include "graph/file/overrides.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace validation_rules_test {
namespace {

const std::vector<StrategyOptions> kStrategies = {{.name = "ssgd"},
                                                  {.name = "sma"},
                                                  {.name = "sma", .every = 4, .momentum = 0},
                                                  {.name = "local", .every = 4},
                                                  {.name = "papa", .every = 4, .alpha = 0.25, .momentum = 0},
                                                  {.name = "diloco", .every = 4, .momentum = 0}};

// Its layers have batch norm: running statistics differ from learner to learner.
Graph normalised(const StrategyOptions& strategy) {
  TinyNet net;
  net.source = "glyphs:?train=243&test=50&size=16";
  net.layers =
      "c = arbalest.ConvBnRelu <filters = 4, kernel_shape = [3, 3], strides = [2, 2]> (x)\n"
      "d = arbalest.ConvBnRelu <filters = 6, kernel_shape = [3, 3], strides = [2, 2]> (c)\n"
      "h = GlobalAveragePool (d)\n";
  net.train = "lr = 0.02";
  const std::vector<std::string>& reads = strategy_spec(strategy.name).reads;
  net.synchronize = fmt::format("strategy = \"{}\", every = {}", strategy.name, strategy.every);
  if (std::find(reads.begin(), reads.end(), "momentum") != reads.end()) net.synchronize += ", momentum = 0";
  return tiny(net);
}

std::vector<double> numbers(const std::vector<std::byte>& bytes) {
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return {floats.begin(), floats.end()};
}

// Statistics of the union of the replicas' populations: means, then variances.
std::vector<double> pooled(const std::vector<LearnerState>& replicas) {
  const auto k = double(replicas.size());
  std::vector<double> all(numbers(replicas[0].statistics).size(), 0);
  const size_t half = all.size() / 2;
  for (const LearnerState& replica : replicas) {
    for (size_t c = 0; c < half; ++c) all[c] += numbers(replica.statistics)[c] / k;
  }
  for (const LearnerState& replica : replicas) {
    const std::vector<double> own = numbers(replica.statistics);
    for (size_t c = 0; c < half; ++c) all[half + c] += (own[half + c] + std::pow(own[c] - all[c], 2)) / k;
  }
  return all;
}

struct Finished {
  RunState state;
  ModelState shared, validated;  // by what the replicas hold at the end; by the last validation's snapshot
  Recorder story;
};

Finished finished(Graph graph, SessionOptions options) {
  options.files.save_best = "not written here";
  Finished end;
  const Prepared prepared = prepare(std::move(graph), options);
  Monitor monitor(prepared.program, options.rules, end.story);
  const auto validated = [&](const Monitor::Verdict&, const ModelState& model, const RunPosition&) {
    end.validated = model;
  };
  Segment segment(prepared, options, {}, monitor, {.on_validated = validated});
  segment.start_from(initial_values(prepared, options));
  monitor.begin();
  segment.run({}, nullptr);
  end.state = segment.state();
  end.shared = segment.model();
  return end;
}

// Epochs of 3 iterations, less than what is read ahead.
Setting short_epochs(const StrategyOptions& strategy, int devices, int learners) {
  Setting setting;
  setting.strategy = strategy;
  setting.strategy.momentum = 0;
  setting.devices = devices;
  setting.learners = learners;
  setting.batch = 16 / setting.all_learners();
  setting.rounds = 3;
  setting.test_samples = 40;
  return setting;
}

// The file that a run of so many iterations saves.
Bits saved_after(Setting setting, int64_t iterations) {
  const TestFolder folder;
  setting.iterations = iterations;
  SessionOptions options = options_of(setting);
  options.numerics.deterministic = true;
  options.files.save = folder / "weights.safetensors";
  run(graph_of(setting), options);
  return bits_of(read_safetensors(options.files.save));
}

}  // namespace

TEST_CASE("statistics of replicas become those of all their samples") {
  // Three replicas that each saw four samples of two channels.
  const double samples[3][2][4] = {
      {{1, 2, 3, 6}, {-1, 0, 0, 1}}, {{2, 2, 2, 2}, {5, 5, 5, 9}}, {{0, 8, 1, 3}, {0, 0, 0, 0}}};
  std::vector<LearnerState> replicas(3);
  double mean[2] = {0, 0}, square[2] = {0, 0};
  for (size_t j = 0; j < 3; ++j) {
    float statistics[4] = {0, 0, 0, 0};
    for (size_t c = 0; c < 2; ++c) {
      double sum = 0, squares = 0;
      for (const double x : samples[j][c]) sum += x, squares += x * x;
      statistics[c] = float(sum / 4);
      statistics[2 + c] = float(squares / 4 - sum / 4 * sum / 4);
      mean[c] += sum / 12;
      square[c] += squares / 12;
    }
    replicas[j].statistics.resize(sizeof statistics);
    std::memcpy(replicas[j].statistics.data(), statistics, sizeof statistics);
  }
  const std::vector<double> merged = numbers(merged_statistics(replicas));
  REQUIRE(merged.size() == 4);
  for (size_t c = 0; c < 2; ++c) {
    CHECK(merged[c] == doctest::Approx(mean[c]).epsilon(1e-6));
    CHECK(merged[2 + c] == doctest::Approx(square[c] - mean[c] * mean[c]).epsilon(1e-6));
  }
}

TEST_CASE("batch norm's statistics of all learners are validated and saved") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& [devices, learners] : {std::pair{1, 3}, {3, 1}, {2, 2}}) {
      INFO(strategy.name, " every ", strategy.every, " on ", devices, " devices with ", learners, " learners");
      SessionOptions options = on_cpus(devices, learners);
      options.length.epochs = 2;
      const Finished end = finished(normalised(strategy), options);
      REQUIRE(end.state.learners.size() == size_t(devices * learners));
      const std::vector<double> expected = pooled(end.state.learners);
      CHECK(greatest_difference(numbers(end.shared.statistics), expected) < 1e-6);
      CHECK(greatest_difference(numbers(end.state.learners[0].statistics), expected) > 1e-3);
      // The snapshot is of the same iteration, but merged on the devices.
      CHECK(greatest_difference(numbers(end.validated.statistics), expected) < 1e-6);
      CHECK(end.validated.weights == end.shared.weights);
    }
  }
}

TEST_CASE("learners train the same model wherever they are") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& layouts : {std::vector{std::pair{1, 3}, {3, 1}}, {std::pair{1, 4}, {2, 2}, {4, 1}}}) {
      std::vector<Finished> ends;
      for (const auto& [devices, learners] : layouts) {
        SessionOptions options = on_cpus(devices, learners);
        options.length.epochs = 2;
        ends.push_back(finished(normalised(strategy), options));
      }
      for (const Finished& end : ends) {
        INFO(strategy.name, " every ", strategy.every, ", ", ends[0].state.learners.size(), " learners");
        CHECK(greatest_difference(numbers(end.shared.weights), numbers(ends[0].shared.weights)) < 1e-5);
        CHECK(greatest_difference(numbers(end.shared.statistics), numbers(ends[0].shared.statistics)) < 1e-5);
        REQUIRE(end.story.validations.size() == 2);
        for (size_t v = 0; v < 2; ++v) {
          const Validated &one = end.story.validations[v], &other = ends[0].story.validations[v];
          CHECK(one.loss == doctest::Approx(other.loss).epsilon(1e-5));
          CHECK(std::abs(one.metrics.at(0).second - other.metrics.at(0).second) < 1e-6);
        }
      }
    }
  }
}

TEST_CASE("devices share a validation, whatever its size") {
  for (const int64_t samples : {1, 15, 16, 17, 47, 48, 50}) {
    for (int devices = 1; devices <= 3; ++devices) {
      for (const StrategyOptions& strategy : kStrategies) {
        Setting setting = short_epochs(strategy, devices, 2);
        setting.test_samples = samples;
        setting.iterations = 2 * setting.rounds;
        setting.rate = 0;  // every validation sees the first weights
        const Reference reference(setting);
        const Reference::Metrics expected = reference.validate(reference.model());
        const Recorder story = run(graph_of(setting), options_of(setting));
        INFO(samples, " samples, ", to_string(setting));
        REQUIRE(story.validations.size() == 2);
        for (const Validated& validation : story.validations) {
          CHECK(validation.samples == samples);
          CHECK(validation.loss == doctest::Approx(expected.loss).epsilon(1e-5));
          CHECK(std::abs(validation.metrics.at(0).second - expected.accuracy) < 1e-6);
        }
      }
    }
  }
}

TEST_CASE("the model that reaches the target is saved, whatever is trained before the run ends") {
  const TestFolder folder;
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
      Setting setting = short_epochs(strategy, devices, learners);
      setting.iterations = 100000 * setting.rounds;
      SessionOptions options = options_of(setting);
      options.numerics.deterministic = true;
      options.files.save = folder / "weights.safetensors";
      options.rules.targets = {parse_target("loss < 2.2")};
      INFO(to_string(setting));
      const Recorder story = run(graph_of(setting), options);
      REQUIRE(story.ends.size() == 1);
      CHECK(story.ends[0].reason == RunEnd::Until);
      CHECK(story.ends[0].iteration < setting.iterations);
      // Nothing is validated once the target is reached.
      const auto met = [](const Validated& validation) { return validation.loss < 2.2; };
      REQUIRE(story.validations.size() > 1);
      CHECK(met(story.validations.back()));
      CHECK(std::count_if(story.validations.begin(), story.validations.end(), met) == 1);
      const int64_t reached = story.validations.back().iteration;
      CHECK(read_safetensors(options.files.save).metadata.at("iteration") == std::to_string(reached));
      CHECK(bits_of(read_safetensors(options.files.save)) == saved_after(setting, reached));
    }
  }
}

TEST_CASE("the best model is saved") {
  const TestFolder folder;
  for (const char* metric : {"loss", "accuracy", ""}) {
    for (const StrategyOptions& strategy : kStrategies) {
      Setting setting = short_epochs(strategy, 2, 2);
      setting.iterations = 12 * setting.rounds;
      setting.rate = 0.4;  // too high for every validation to be better
      SessionOptions options = options_of(setting);
      options.numerics.deterministic = true;
      options.files.save_best = folder / "best.safetensors";
      options.rules.metric = metric;
      INFO(metric, ", ", to_string(setting));
      const Recorder story = run(graph_of(setting), options);
      REQUIRE(story.validations.size() == 12);
      const bool by_loss = metric == std::string("loss");
      const auto value = [&](const Validated& v) { return by_loss ? -v.loss : v.metrics.at(0).second; };
      const Validated* best = nullptr;
      std::vector<int64_t> better;
      for (const Validated& validation : story.validations) {
        if (best && !(value(validation) > value(*best))) continue;
        best = &validation;
        better.push_back(validation.iteration);
      }
      CHECK(better.size() < 12);
      std::vector<int64_t> saved;
      for (const CheckpointSaved& checkpoint : story.checkpoints) saved.push_back(checkpoint.iteration);
      CHECK(saved == better);
      CHECK(bits_of(read_safetensors(options.files.save_best)) == saved_after(setting, best->iteration));
    }
  }
}

TEST_CASE("patience ends a run that gets no better") {
  for (const auto& [devices, learners] : {std::pair{1, 1}, {2, 2}}) {
    Setting setting = short_epochs(kStrategies[1], devices, learners);
    setting.iterations = 100000 * setting.rounds;
    setting.rate = 1e-9;
    SessionOptions options = options_of(setting);
    options.rules.patience = 3;
    INFO(to_string(setting));
    const Recorder story = run(graph_of(setting), options);
    REQUIRE(story.ends.size() == 1);
    CHECK(story.ends[0].reason == RunEnd::Patience);
    CHECK(story.ends[0].iteration < setting.iterations);
    CHECK(story.validations.size() == 4);  // the first is the best

    // The model that was validated last is saved, no matter where the run came to rest afterwards.
    const TestFolder folder;
    options.numerics.deterministic = true;
    options.files.save = folder / "weights.safetensors";
    setting.rate = 0.4;
    const Recorder moving = run(graph_of(setting), options);
    CHECK(moving.ends.at(0).reason == RunEnd::Patience);
    CHECK(bits_of(read_safetensors(options.files.save)) == saved_after(setting, moving.validations.back().iteration));
  }
}

TEST_CASE("the rate falls on a plateau, two validations later, as a schedule would have it") {
  const TestFolder folder;
  for (const StrategyOptions& strategy : kStrategies) {
    Setting setting = short_epochs(strategy, 2, 2);
    setting.momentum = 0.5;
    setting.iterations = 12 * setting.rounds;
    setting.rate = 0.4;
    SessionOptions options = options_of(setting);
    options.numerics.deterministic = true;
    options.execution.report_every = 1;
    options.files.save = folder / "weights.safetensors";
    options.rules.metric = "loss";
    options.rules.plateau = 2;
    options.rules.plateau_factor = 0.5;
    INFO(to_string(setting));
    const Recorder story = run(graph_of(setting), options);
    REQUIRE(story.validations.size() == 12);

    double best = story.validations[0].loss;
    int64_t waited = 0;
    for (int64_t v = 1; v < 12; ++v) {
      const double loss = story.validations[size_t(v)].loss;
      waited = loss < best ? 0 : waited + 1;
      best = std::min(best, loss);
      if (waited < options.rules.plateau) continue;
      waited = 0;
      setting.milestones.push_back(double(v + 2));  // validation v ends epoch v; the next one is under way
    }
    REQUIRE(!setting.milestones.empty());
    REQUIRE(setting.milestones[0] < 12);
    REQUIRE(story.reports.size() == size_t(setting.iterations));
    for (const RunProgress& report : story.reports) {
      const auto drops = std::count_if(setting.milestones.begin(), setting.milestones.end(), [&](double at) {
        return at <= double((report.iteration - 1) / setting.rounds);
      });
      CHECK(report.learning_rate == std::ldexp(setting.rate, -int(drops)));
    }
    CHECK(bits_of(read_safetensors(options.files.save)) == saved_after(setting, setting.iterations));
  }
}

TEST_CASE("rules that do not fit the graph are refused") {
  Setting setting = short_epochs(kStrategies[1], 2, 2);
  const auto refusal = [&](const ValidationRules& rules, const std::string& save_best = "") {
    SessionOptions options = options_of(setting);
    options.rules = rules;
    options.files.save_best = save_best;
    return message_of([&] { run(graph_of(setting), options); });
  };
  CHECK(contains(
      refusal({.metric = "acuracy"}),
      "--metric 'acuracy': validation has no metric 'acuracy'; expected loss or accuracy; did you mean 'accuracy'?"));
  CHECK(contains(refusal({.targets = {parse_target("los < 1")}}),
                 "--until 'los < 1': validation has no metric 'los'; expected loss or accuracy; did you mean 'loss'?"));
  CHECK(contains(refusal({}, "/nowhere/best.safetensors"), "there is no folder '/nowhere'"));
  setting.test_samples = 0;
  CHECK(contains(refusal({.patience = 2}), "--patience needs a graph that validates"));
  CHECK(contains(refusal({.plateau = 2}), "--plateau needs a graph that validates"));
  CHECK(contains(refusal({}, "best.safetensors"), "--save-best needs a graph that validates"));
}

TEST_CASE("numbers of a session that the command would refuse are refused") {
  const auto refused = [](const auto& set) {
    SessionOptions options = on_cpus();
    set(options);
    return message_of([&] { prepare(tiny({}), options); });
  };
  const auto check = [&](const auto& set, const char* message) { CHECK(refused(set) == message); };
  const double nan = std::nan("");
  check([](auto& o) { o.length.epochs = -1; }, "--epochs -1: expected a whole number from 1 to 2^63 - 1");
  check([](auto& o) { o.length.iterations = 0; }, "--iterations 0: expected a whole number from 1 to 2^63 - 1");
  check([](auto& o) { o.length.iterations = -3; }, "--iterations -3: expected a whole number from 1 to 2^63 - 1");
  check([](auto& o) { o.learners.per_device = -2; }, "--learners -2: expected 0, or a whole number from 1 to 1024");
  check([](auto& o) { o.execution.threads = -1; }, "--threads -1: expected a whole number from 0 to 1024");
  check([&](auto& o) { o.length.seconds = nan; }, "--time-limit nan: expected 0, or a number from 0.001 to 1e+09");
  check([](auto& o) { o.execution.skip_bad = -1; }, "--skip-bad -1: expected a whole number from 0 to 2^63 - 1");
  check([](auto& o) { o.rules.plateau_factor = 2; }, "--plateau-factor 2: expected a number from 0 to 1");
  check([](auto& o) { o.checkpoints.keep = 0; }, "--checkpoint-keep 0: expected a whole number from 1 to 2^63 - 1");
  check([](auto& o) { o.execution.read_timeout = 2e6; }, "--read-timeout 2e+06: expected a number from 0 to 1e+06");
  check([](auto& o) { o.execution.device_timeout = 2e6; },
        "--device-timeout 2e+06: expected a number from 0.001 to 1e+06, or an infinity");
  check([&](auto& o) { o.execution.device_timeout = -HUGE_VAL; },
        "--device-timeout -inf: expected a number from 0.001 to 1e+06, or an infinity");
  CHECK(refused([](auto& o) { o.execution.device_timeout = HUGE_VAL; }).empty());  // no limit
  CHECK(refused([](auto&) {}).empty());
}

}  // namespace validation_rules_test
