// SPDX-License-Identifier: Apache-2.0

// Strategies that follow each other, and periods of averaging that grow as the rate falls.

#include "executor/session/strategy_phases.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <memory>
#include <optional>

#include "executor/training/checkpoint.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace strategy_phases_test {
namespace {

constexpr double kTolerance = 1e-6;

const StrategyOptions kSsgd{.name = "ssgd"}, kLocal{.name = "local", .every = 4}, kSma{.name = "sma", .momentum = 0},
    kPapa{.name = "papa", .every = 2, .alpha = 0.25}, kApart{.name = "papa", .every = 4, .alpha = 0},
    kDiloco{.name = "diloco", .every = 3, .beta = 0.7, .momentum = 0.5};

Setting setting_of(const StrategyOptions& first, std::vector<StrategyPhase> later, int devices, int learners) {
  Setting setting;
  setting.strategy = first;
  setting.later = std::move(later);
  setting.devices = devices;
  setting.learners = learners;
  setting.momentum = 0.9;
  setting.rate = 0.01;
  return setting;
}

std::vector<StrategyPhase> phases_of(const Graph& graph, int64_t learners = 4) {
  return strategy_phases(graph, {}, learners);
}

// The updates between averagings by epoch, from a plan of strategies.
std::vector<int64_t> periods(const std::vector<StrategyPhase>& phases, int64_t epochs) {
  std::vector<int64_t> all;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) all.push_back(phase_at(phases, epoch).phase.strategy.every);
  return all;
}

EpochRates rates_of(const std::string& train, double epochs, int64_t updates = 1000) {
  TinyNet net;
  net.train = train;
  const Graph graph = tiny(net);
  return {LearningRate(*graph.find_op("arbalest.Train")), 1, epochs, updates};
}

std::string refusal(const TinyNet& net, const std::optional<std::string>& strategy = {}) {
  return message_of([&] {
    SessionOptions options = on_cpus(1, 2);
    options.learners.strategy = strategy;
    run(tiny(net), options);
  });
}

}  // namespace

// 50 iterations in epochs of 7.
TEST_CASE("one strategy follows another as the equations say") {
  const std::vector<std::pair<StrategyOptions, std::vector<StrategyPhase>>> chains = {
      {kSsgd, {{2, kLocal}}},
      {kSsgd, {{1, kApart}}},
      {kSma, {{3, kApart}}},
      {kSma, {{1, kPapa}, {4, kSsgd}}},
      {kPapa, {{2, kSma}}},
      {kPapa, {{2, kDiloco}, {3, kLocal}, {5, kPapa}}},
      {{.name = "none"}, {{2, kDiloco}}},
      {kDiloco, {{2, kSsgd}, {9, kLocal}}},  // the run ends before the last
  };
  for (const auto& [first, later] : chains) {
    for (const auto& [devices, learners] : {std::pair{1, 3}, {2, 2}}) {
      Setting setting = setting_of(first, later, devices, learners);
      INFO(to_string(setting));
      INFO(to_string(phases_of(graph_of(setting))));
      CHECK(greatest_difference(executed(setting), simulated(setting)) < kTolerance);
      Setting single = setting;
      single.later.clear();
      CHECK(greatest_difference(simulated(setting), simulated(single)) > 100 * kTolerance);
      setting.test_samples = 61;
      setting.iterations = 6 * setting.rounds;
      check_validations(setting, 1e-5);
    }
  }
}

TEST_CASE("a run goes on within any of its strategies to the same bits") {
  const TestFolder folder;
  Setting setting = setting_of(kSsgd, {{1, kPapa}, {3, kLocal}}, 2, 2);
  setting.iterations = 5 * setting.rounds;
  const auto train = [&](const std::string& name, int64_t every, std::shared_ptr<const CheckpointFile> from) {
    SessionOptions options = options_of(setting);
    options.numerics.deterministic = true;
    options.checkpoints.folder = folder / name;
    options.checkpoints.iterations = every;
    options.checkpoints.keep = 100;
    options.checkpoints.from = std::move(from);
    options.files.save = folder / (name + ".safetensors");
    run(graph_of(setting), options);
    return bits_of(read_safetensors(options.files.save));
  };
  for (const int64_t every : {4, 7}) {  // within strategies, and where they change
    const std::string name = fmt::format("every {}", every);
    const Bits whole = train(name, every, nullptr);
    int64_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / name)) {
      if (entry.path().extension() != ".safetensors") continue;
      CAPTURE(entry.path().string());
      const auto from = std::make_shared<const CheckpointFile>(read_checkpoint(entry.path()));
      CHECK(train(fmt::format("{} file {}", name, files++), every, from) == whole);
    }
    // One that is due while another is being written is taken later, or not at all.
    CHECK(files >= 2);
    CHECK(files <= (setting.iterations + every - 1) / every);
  }
}

TEST_CASE("a run goes on with more learners within any of its strategies, and where they change") {
  const TestFolder folder;
  TinyNet net;
  net.synchronize = "strategy = \"ssgd\"";
  net.later = {"strategy = \"papa\", every = 2, from = 1", "strategy = \"diloco\", every = 2, from = 2"};
  SessionOptions options = on_cpus(1, 2);
  options.length.epochs = 3;
  options.checkpoints.folder = folder / "all";
  options.checkpoints.iterations = 3;  // of six an epoch
  options.checkpoints.keep = 100;
  run(tiny(net), options);
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "all")) {
    if (entry.path().extension() != ".safetensors") continue;
    SessionOptions more = options;
    more.learners.per_device = 3;
    more.checkpoints.from = std::make_shared<const CheckpointFile>(read_checkpoint(entry.path()));
    if (more.checkpoints.from->checkpoint.position.iteration == 18) continue;  // the end
    more.checkpoints.folder = folder / fmt::format("more {}", files++);
    const Recorder story = run(tiny(net), more);
    CHECK(story.ends.at(0).reason == RunEnd::Complete);
    CHECK(story.ends.at(0).epoch == 3);
    CHECK(story.ends.at(0).learners == 3);
    int64_t last = -1;  // iteration of the newest checkpoint
    std::string strategy;
    for (const auto& made : std::filesystem::directory_iterator(more.checkpoints.folder)) {
      if (made.path().extension() != ".safetensors") continue;
      const Checkpoint checkpoint = read_checkpoint(made.path()).checkpoint;
      if (checkpoint.position.iteration <= last) continue;
      last = checkpoint.position.iteration;
      strategy = checkpoint.strategy.name;
    }
    CHECK(strategy == "diloco");  // which holds at the end, whatever the run went on from
  }
  CHECK(files == 5);
}

TEST_CASE("strategies are listed by the epochs from which they hold") {
  const Setting setting = setting_of(kSsgd, {{2, kPapa}, {5, kLocal}}, 2, 2);
  const std::vector<StrategyPhase> phases = phases_of(graph_of(setting));
  REQUIRE(phases.size() == 3);
  CHECK(phase_at(phases, 0).phase.strategy.name == "ssgd");
  CHECK(phase_at(phases, 0).until == 2);
  CHECK(phase_at(phases, 4).phase.strategy.name == "papa");
  CHECK(phase_at(phases, 4).until == 5);
  CHECK(phase_at(phases, 100).phase.strategy.name == "local");
  CHECK(phase_at(phases, 100).until == INT64_MAX);
  CHECK(to_string(phases) == "ssgd, from epoch 3 on papa every 2 updates, from epoch 6 on local every 4 updates");
  CHECK(phases_of(graph_of(setting), 1).size() == 1);  // nobody to agree with
  const Recorder story = run(graph_of(setting), options_of(setting));
  REQUIRE(story.starts.size() == 1);
  CHECK(story.starts[0].strategy == to_string(phases));
  CHECK(story.starts[0].iterations == setting.iterations);
  CHECK(story.ends.at(0).iteration == setting.iterations);
}

TEST_CASE("a strategy has its own numbers where the graph states none") {
  TinyNet net;
  const auto first = [&](const char* attributes, std::optional<std::string> name = {}) {
    net.synchronize = attributes;
    return strategy_phases(tiny(net), name, 2).at(0).strategy;
  };
  const StrategyOptions papa = first("strategy = \"papa\"");
  CHECK(papa.every == 10);
  CHECK(papa.alpha == 0.01);
  CHECK(papa.beta == 1);
  CHECK(papa.momentum == 0);
  const StrategyOptions diloco = first("strategy = \"sma\"", "diloco");
  CHECK(diloco.every == 50);
  CHECK(diloco.beta == 0.7);
  CHECK(diloco.momentum == 0.9);
  CHECK(first("strategy = \"sma\", alpha = 0.125, every = 3", "papa").alpha == 0.125);
  CHECK(first("strategy = \"sma\", alpha = 0.125, every = 3", "papa").every == 3);
  CHECK(first("", "papa").every == 10);
  CHECK(first("strategy = \"sma\"").alpha == 0.5);
  CHECK_FALSE(first("strategy = \"papa\", follows_rate = 1, growth = 0.1", "ssgd").follows_rate);
}

// The rule of the paper is max(every, (growth / rate)²); the run's is between half of that and the whole.
TEST_CASE("the period of averaging grows as the rate falls") {
  const StrategyOptions growing{.name = "local", .every = 2, .growth = 0.2};
  const EpochRates cosine = rates_of("lr = 0.1, schedule = \"cosine\", epochs = 20, warmup = 3", 20);
  const std::vector<int64_t> all = periods(grown({{0, growing}}, cosine), 20);
  CHECK(std::is_sorted(all.begin(), all.end()));  // not shorter while the warm-up raises the rate
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    CAPTURE(epoch);
    const double rate = cosine.schedule.rate(std::max(3.0, double(epoch)), 20);
    const double rule = std::max(2.0, 0.2 / rate * (0.2 / rate));
    CHECK(double(all[size_t(epoch)]) <= std::max(rule, 2.0));
    CHECK((double(all[size_t(epoch)]) > rule / 2 || all[size_t(epoch)] >= 1000));
  }
  const EpochRates steps = rates_of("lr = 0.1, schedule = \"multistep\", milestones = [2, 4], gamma = 0.5", 6);
  CHECK(periods(grown({{0, growing}}, steps), 6) == std::vector<int64_t>{4, 4, 16, 16, 64, 64});
  CHECK(periods(grown({{0, growing}, {4, kLocal}}, steps), 6) == std::vector<int64_t>{4, 4, 16, 16, 4, 4});
  EpochRates scaled = steps;
  scaled.scale = 2;  // of the rate
  CHECK(periods(grown({{0, growing}}, scaled), 6) == std::vector<int64_t>{2, 2, 4, 4, 16, 16});
  const EpochRates short_epochs = rates_of("lr = 0.1, schedule = \"linear\"", 6, 10);
  CHECK(periods(grown({{0, growing}}, short_epochs), 6).back() == 16);  // an epoch has no more updates
  CHECK(contains(message_of([&] {
                   grown({{0, growing}}, rates_of("lr = 0.1", 2e6));
                 }),
                 "attribute 'growth' is 0.2 in a run of 2000000 epochs; expected at most 1000000"));
}

TEST_CASE("a run whose period grows is one of the strategies that this makes") {
  StrategyOptions growing = kLocal, once = kLocal, twice = kLocal;
  growing.every = once.every = 1;
  growing.growth = 0.01;  // times four where the rate halves
  twice.every = 4;
  Setting setting = setting_of(growing, {}, 2, 2), listed = setting_of(once, {{2, twice}}, 2, 2);
  setting.milestones = listed.milestones = {2};
  CHECK(greatest_difference(executed(setting), simulated(listed)) < kTolerance);
}

TEST_CASE("strategies that cannot follow each other are refused") {
  TinyNet net;
  net.synchronize = "strategy = \"ssgd\"";
  net.later = {"strategy = \"local\""};
  CHECK(contains(refusal(net),
                 "'synced_later' (arbalest.Synchronize): attribute 'from' is 0; expected more than 0, the "
                 "epoch from which 'synced' holds"));
  net.later = {"strategy = \"local\", from = 2", "strategy = \"papa\", from = 2"};
  CHECK(contains(refusal(net), "attribute 'from' is 2; expected more than 2"));
  net.later = {"strategy = \"local\", from = 2"};
  CHECK(contains(refusal(net, "sma"), "--strategy sma replaces one strategy, and the graph has 2"));
  net.synchronize = "strategy = \"ssgd\", from = 1";
  net.later.clear();
  CHECK(contains(refusal(net), "attribute 'from' is 1; expected 0, since there is no strategy before it"));
  net.synchronize = "strategy = \"ssgd\", growth = 0.1";
  CHECK(
      contains(refusal(net), "attribute 'growth' belongs to strategy \"sma\" or \"local\" or \"papa\" or \"diloco\""));
  net.synchronize = "strategy = \"local\", growth = -1.0";
  CHECK(contains(refusal(net), "attribute 'growth' is -1; expected at least 0"));
}

}  // namespace strategy_phases_test
