// SPDX-License-Identifier: Apache-2.0

// Several learners against the equations of their synchronisation, simulated in double precision.

#include <doctest/doctest.h>

#include <map>

#include "executor/trace/trace_file.h"
#include "graph/file/overrides.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using namespace arbalest::test;

namespace synchronize_test {
namespace {

// Runs compute in single precision. Over all settings below their weights, which reach ±0.6, differ from the
// simulation's by less than 3e-7. It is 6e-7 if a mean of three is taken 50 times, as 1/3 in single precision is 3e-8
// too much.
constexpr double kTolerance = 1e-6;
constexpr double kTurnedTolerance = 1e-5;  // turns of Newton and Schulz make what is rounded larger

void check_against_simulation(const Setting& setting, double tolerance = kTolerance) {
  INFO(to_string(setting));
  CHECK(greatest_difference(executed(setting), simulated(setting)) < tolerance);
}

StrategyOptions ssgd() {
  return {.name = "ssgd"};
}

StrategyOptions sma(int64_t every, double momentum, double alpha = 0.5, double beta = 1) {
  return {.name = "sma", .every = every, .alpha = alpha, .beta = beta, .momentum = momentum};
}

StrategyOptions local(int64_t every) {
  return {.name = "local", .every = every};
}

// Four iterations are little for the paper's 0.01 to show.
StrategyOptions papa(int64_t every, double alpha = 0.25) {
  return {.name = "papa", .every = every, .alpha = alpha};
}

StrategyOptions diloco(int64_t every, double beta = 0.7, double momentum = 0.5) {
  return {.name = "diloco", .every = every, .beta = beta, .momentum = momentum};
}

StrategyOptions following(StrategyOptions strategy) {
  strategy.follows_rate = true;
  return strategy;
}

const std::vector<StrategyOptions> kStrategies = {ssgd(),   sma(1, 0), sma(1, 0.9), sma(4, 0), sma(4, 0.9),
                                                  local(1), local(4),  papa(1),     papa(4),   diloco(4)};

struct Optimizer {
  double momentum, decay;
  bool nesterov;
};

// On top of the average's momentum in every update, an optimiser's own is unstable.
std::vector<Optimizer> optimizers(const StrategyOptions& strategy) {
  std::vector<Optimizer> all = {{0, 0, false}, {0, 0.02, false}};
  if (strategy.momentum <= 0 || strategy.name == "diloco") all.insert(all.end(), {{0.9, 0, false}, {0.9, 0.02, true}});
  return all;
}

Setting setting_of(const StrategyOptions& strategy, const Optimizer& optimizer, int devices, int learners) {
  Setting setting;
  setting.strategy = strategy;
  setting.devices = devices;
  setting.learners = learners;
  setting.momentum = optimizer.momentum;
  setting.decay = optimizer.decay;
  setting.nesterov = optimizer.nesterov;
  setting.rate = optimizer.momentum > 0 ? 0.01 : 0.05;
  return setting;
}

}  // namespace

// 50 iterations in epochs of 7: groups of 4 are cut to 3 at the end of each epoch, and the run ends within one.
TEST_CASE("learners on one device and on several train as the equations say") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const Optimizer& optimizer : optimizers(strategy)) {
      for (int layout = 0; layout < 9; ++layout) {
        check_against_simulation(setting_of(strategy, optimizer, 1 + layout / 3, 1 + layout % 3));
      }
    }
  }
}

TEST_CASE("AdamW trains by every strategy as the equations say") {
  for (StrategyOptions strategy : kStrategies) {
    if (strategy.momentum > 0) continue;
    strategy.momentum = -1;  // of SMA's average: 0, as the first moment is a momentum
    for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
      for (const int64_t accumulate : {1, 2}) {
        Setting setting = setting_of(strategy, {0, 0.1, false}, devices, learners);
        setting.adamw = true;
        setting.hidden = 12;
        setting.accumulate = accumulate;
        setting.milestones = {2.4, 4};  // SMA restarts: the moments begin anew
        check_against_simulation(setting);
        if (strategy.name != "sma" || devices == 1) continue;
        setting.milestones = {};  // if it never restarts, updates of several devices wait for less
        check_against_simulation(setting);
      }
    }
  }
}

TEST_CASE("RMSprop, LARS and LAMB train by every strategy as the equations say") {
  for (StrategyOptions strategy : kStrategies) {
    if (strategy.momentum > 0) continue;
    strategy.momentum = -1;
    for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 2}, {2, 2}}) {
      for (const char* rule : {"rmsprop", "lars", "lamb"}) {
        Setting setting = setting_of(strategy, {0, 0.1, false}, devices, learners);
        setting.rule = rule;
        setting.rate = 0.01;
        if (setting.rule != "lamb") setting.momentum = 0.5;
        if (setting.rule == "lars") setting.nesterov = learners == 2;
        setting.hidden = 12;
        setting.accumulate = learners;
        setting.milestones = {2.4, 4};  // SMA restarts: the slots begin anew
        check_against_simulation(setting);
        setting.clip = 0.5;
        setting.logits_factor = 0.25;
        setting.decay_biases = false;  // which leaves the rate of biases alone
        check_against_simulation(setting);
      }
    }
  }
}

TEST_CASE("Muon trains by every strategy as the equations say") {
  for (StrategyOptions strategy : kStrategies) {
    if (strategy.momentum > 0) continue;
    strategy.momentum = -1;
    for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 2}, {2, 2}}) {
      Setting setting = setting_of(strategy, {0.75, 0.1, learners == 2}, devices, learners);
      setting.rule = "muon";
      setting.rate = 0.01;
      setting.hidden = 12;
      setting.accumulate = devices;
      setting.milestones = {2.4, 4};  // SMA restarts: the slots begin anew
      check_against_simulation(setting, kTurnedTolerance);
      setting.momentum_only = true;
      setting.clip = 0.5;
      setting.logits_factor = 0.25;
      setting.decay_biases = false;
      check_against_simulation(setting, kTurnedTolerance);
      setting.momentum_only = false;
      setting.freeze_hidden = true;
      setting.ema = 0.9;
      check_against_simulation(setting, kTurnedTolerance);
    }
  }
}

TEST_CASE("clipping, parameter groups and frozen layers are the same under every strategy and optimiser") {
  std::vector<StrategyOptions> strategies = {{.name = "none"}, ssgd(), sma(2, 0), local(2)};
  for (const StrategyOptions& strategy : strategies) {
    for (const auto& [devices, learners] : {std::pair{1, 2}, {2, 1}, {2, 2}}) {
      for (const bool adamw : {false, true}) {
        Setting setting = setting_of(strategy, {adamw ? 0 : 0.9, 0.1, !adamw}, devices, learners);
        setting.adamw = adamw;
        setting.hidden = 12;
        setting.accumulate = devices;
        setting.rounds = 8;
        setting.clip = 0.5;
        setting.logits_factor = 0.25;
        setting.decay_biases = false;
        setting.milestones = {2.4};
        setting.strategy.bucket_bytes = 64;  // the norm is that of all buckets
        check_against_simulation(setting);
        setting.freeze_hidden = true;
        setting.test_samples = 20;
        setting.iterations = 4 * setting.rounds;
        check_validations(setting, 1e-5);
        check_against_simulation(setting);
      }
    }
  }
}

TEST_CASE("what is compared tells clipping, groups and frozen layers from plain updates") {
  Setting plain = setting_of(ssgd(), {0.9, 0.1, false}, 1, 2);
  plain.hidden = 12;
  std::vector<Setting> settings(11, plain);
  settings[1].clip = 0.5;
  settings[2].logits_factor = 0.25;
  settings[3].decay_biases = false;
  settings[4].freeze_hidden = true;
  settings[5].momentum = 0;
  settings[5].adamw = true;
  settings[6].rule = "rmsprop";
  settings[7].rule = "lars";
  settings[8].momentum = 0;
  settings[8].rule = "lamb";
  settings[9].rule = settings[10].rule = "muon";
  settings[10].momentum_only = true;
  std::vector<std::vector<double>> models;
  for (const Setting& setting : settings) models.push_back(simulated(setting));
  for (size_t a = 0; a < models.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      INFO(a, " and ", b);
      CHECK(greatest_difference(models[a], models[b]) > 100 * kTolerance);
    }
  }
}

TEST_CASE("a model of two layers trains as the equations say") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& [devices, learners] : {std::pair{1, 3}, {3, 1}, {2, 2}}) {
      Setting setting = setting_of(strategy, optimizers(strategy).back(), devices, learners);
      setting.hidden = 12;
      check_against_simulation(setting);
    }
  }
}

TEST_CASE("of learners that do not synchronise the first is saved") {
  for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 3}, {2, 2}}) {
    check_against_simulation(setting_of({.name = "none"}, {0.9, 0.02, false}, devices, learners));
  }
}

TEST_CASE("what is compared tells strategies apart") {
  std::vector<std::vector<double>> models;
  for (const StrategyOptions& strategy : kStrategies) {
    // Averaging models after every update comes to the same as averaging gradients.
    if (strategy == local(1)) continue;
    models.push_back(simulated(setting_of(strategy, {0, 0, false}, 2, 2)));
  }
  models.push_back(simulated(setting_of(sma(1, 0, 0.1), {0, 0, false}, 2, 2)));
  models.push_back(simulated(setting_of(papa(4, 0), {0, 0, false}, 2, 2)));
  models.push_back(simulated(setting_of(diloco(4, 0.7, 0), {0, 0, false}, 2, 2)));
  models.push_back(simulated(setting_of(ssgd(), {0, 0, false}, 1, 1)));
  models.push_back(simulated(setting_of(ssgd(), {0, 0.02, false}, 2, 2)));
  for (size_t a = 0; a < models.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      INFO(a, " and ", b);
      CHECK(greatest_difference(models[a], models[b]) > 100 * kTolerance);
    }
  }
}

TEST_CASE("an outer step without momentum and of rate 1 is local SGD") {
  const Optimizer plain{0.9, 0.02, false};
  CHECK(greatest_difference(executed(setting_of(diloco(4, 1, 0), plain, 2, 2)),
                            executed(setting_of(local(4), plain, 2, 2))) < kTolerance);
  for (const double beta : {0.3, 1.2}) {
    for (const double momentum : {0.0, 0.5, 0.8}) {
      Setting setting = setting_of(diloco(3, beta, momentum), {0, 0, false}, 2, 2);
      setting.rate = 0.01;  // an outer step with momentum multiplies it
      check_against_simulation(setting);
    }
  }
}

TEST_CASE("the share that learners give up may follow the rate") {
  for (const StrategyOptions& strategy : {sma(1, 0), sma(4, 0), papa(1), papa(4)}) {
    for (const auto& [devices, learners] : {std::pair{1, 2}, {2, 2}}) {
      for (const RateScaling scaling : {RateScaling::None, RateScaling::Linear}) {
        Setting setting = setting_of(following(strategy), {0, 0, false}, devices, learners);
        setting.rate = 0.02;
        setting.scaling = scaling;
        setting.milestones = {1, 2.4, 2.8};
        check_against_simulation(setting);
        Setting fixed = setting;
        fixed.strategy.follows_rate = false;
        CHECK(greatest_difference(simulated(setting), simulated(fixed)) > 100 * kTolerance);
      }
    }
  }
}

TEST_CASE("learners of papa that give nothing up train apart, and their mean is saved") {
  Setting apart = setting_of(papa(4, 0), {0.9, 0, false}, 1, 2);
  check_against_simulation(apart);
  apart.test_samples = 61;
  apart.iterations = 4 * apart.rounds;
  check_validations(apart, 1e-5);
}

// Groups of averagings are cut short at the end of each epoch, and the run ends within one.
TEST_CASE("hosts that average apart train as the equations say") {
  for (StrategyOptions strategy : {sma(1, 0), sma(1, 0.9), sma(2, 0), sma(2, 0.9), local(1), local(2)}) {
    for (const std::vector<int>& hosts : {std::vector<int>{0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {0, 1, 2}}) {
      for (const int64_t every_hosts : {2, 3, 9}) {
        strategy.every_hosts = every_hosts;
        Setting setting =
            setting_of(strategy, optimizers(strategy).back(), int(hosts.size()), 1 + int(hosts.size()) % 2);
        setting.hosts = hosts;
        setting.rounds = 9;
        check_against_simulation(setting);
        setting.milestones = {1, 2.4, 2.8, 5};  // averaging starts again at the end of an epoch, and within groups
        check_against_simulation(setting);
        if (hosts.size() != 3) continue;
        setting.ema = 0.8;
        setting.accumulate = 2;
        setting.rounds = 10;
        check_against_simulation(setting);
      }
    }
  }
}

TEST_CASE("with hosts that average apart a run may end anywhere, and validates what they have in common") {
  for (StrategyOptions strategy : {sma(1, 0), sma(2, 0.9), local(2)}) {
    strategy.every_hosts = 2;
    Setting setting = setting_of(strategy, {0, 0, false}, 3, 1);
    setting.hosts = {0, 1, 1};
    setting.rounds = 7;
    for (setting.iterations = 1; setting.iterations <= 12; ++setting.iterations) check_against_simulation(setting);
    setting.test_samples = 61;
    setting.iterations = 4 * setting.rounds;
    setting.milestones = {2};
    check_validations(setting, 1e-5);
    setting.ema = 0.8;
    check_validations(setting, 1e-5);
  }
}

TEST_CASE("what hosts do by themselves makes a difference, and none if they average each time") {
  for (StrategyOptions strategy : {sma(1, 0.9), sma(2, 0), local(1)}) {
    Setting one = setting_of(strategy, {0, 0, false}, 2, 2);
    SessionOptions options = options_of(one);
    options.numerics.deterministic = true;
    const Bits bits = bits_of(trained(graph_of(one), options));
    one.hosts = {0, 1};
    options.learners.devices = options_of(one).learners.devices;
    CHECK(bits_of(trained(graph_of(one), options)) == bits);
    Setting apart = one;
    apart.strategy.every_hosts = 3;
    CHECK(bits_of(trained(graph_of(apart), options)) != bits);
    CHECK(greatest_difference(simulated(one), simulated(apart)) > 100 * kTolerance);
    apart.hosts = {0, 0};  // on one host it has no meaning
    options.learners.devices = options_of(apart).learners.devices;
    CHECK(bits_of(trained(graph_of(apart), options)) == bits);
  }
}

TEST_CASE("gradients may travel in buckets") {
  for (const auto& [devices, learners] : {std::pair{1, 2}, {3, 1}, {2, 2}}) {
    Setting setting = setting_of(ssgd(), {0.9, 0, false}, devices, learners);
    setting.hidden = 12;
    setting.strategy.bucket_bytes = 64;
    check_against_simulation(setting);
    setting.accumulate = 2;
    check_against_simulation(setting);
  }
}

TEST_CASE("learners may give up any share of their distance from the average") {
  for (const double alpha : {0.05, 0.25, 0.75}) {
    for (const double beta : {0.2, 1.0, 1.2}) {
      check_against_simulation(setting_of(sma(1, 0, alpha, beta), {0.9, 0, false}, 2, 2));
      check_against_simulation(setting_of(sma(3, 0.5, alpha, beta / 2), {0, 0, false}, 2, 2));
    }
  }
}

// Without momentum the averaging's own is 0.9, with it 0.
TEST_CASE("the average has momentum unless the optimiser has it") {
  for (const double momentum : {0.0, 0.9}) {
    check_against_simulation(setting_of(sma(1, -1), {momentum, 0, false}, 2, 2));
  }
}

TEST_CASE("a run may end anywhere in a group") {
  for (const StrategyOptions& strategy : {sma(4, 0), sma(4, 0.9), local(4), papa(4), diloco(4)}) {
    for (int64_t iterations = 1; iterations <= 12; ++iterations) {
      Setting setting = setting_of(strategy, {0, 0, false}, 2, 2);
      setting.rounds = 9;
      setting.iterations = iterations;
      check_against_simulation(setting);
    }
  }
}

TEST_CASE("averaging starts again where the rate drops") {
  for (const int64_t every : {1, 2, 4}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const auto& [devices, learners] : {std::pair{1, 2}, {2, 1}, {2, 2}}) {
        Setting setting = setting_of(sma(every, momentum > 0 ? 0 : 0.9), {momentum, 0, false}, devices, learners);
        setting.milestones = {1, 2.4, 2.8, 5};  // at the end of an epoch, and within groups
        check_against_simulation(setting);
      }
    }
  }
  // Learners that average gradients, are replaced or shall differ go on.
  for (const StrategyOptions& strategy : {ssgd(), local(4), papa(2), diloco(4)}) {
    Setting setting = setting_of(strategy, {0.9, 0, false}, 2, 2);
    setting.milestones = {1, 2.4};
    check_against_simulation(setting);
  }
}

TEST_CASE("the rate may follow the number of learners") {
  for (const RateScaling scaling : {RateScaling::Linear, RateScaling::Sqrt}) {
    for (const StrategyOptions& strategy : {ssgd(), sma(1, 0)}) {
      Setting setting = setting_of(strategy, {0, 0, false}, 2, 2);
      setting.rate = 0.02;
      setting.scaling = scaling;
      setting.milestones = {3};
      check_against_simulation(setting);
    }
  }
}

TEST_CASE("several batches may make an update") {
  for (const StrategyOptions& strategy : {ssgd(), sma(1, 0), sma(3, 0), local(2), sma(2, 0.9), papa(2), diloco(2)}) {
    const Optimizer optimizer{strategy.momentum > 0 ? 0 : 0.9, 0.01, false};
    for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 3}, {2, 2}}) {
      for (const int64_t iterations : {60, 57, 55, 50}) {  // whole epochs; within a group; within an update
        Setting setting = setting_of(strategy, optimizer, devices, learners);
        setting.accumulate = 3;
        setting.rounds = 13;  // 12 in whole updates
        setting.iterations = iterations;
        setting.milestones = {2.3};
        check_against_simulation(setting);
        if (strategy.name != "sma" || devices == 1) continue;
        setting.milestones = {};  // it never restarts
        check_against_simulation(setting);
      }
    }
  }
}

TEST_CASE("gradients of several batches travel once an update") {
  const TestFolder folder;
  Setting setting = setting_of(ssgd(), {0.9, 0, false}, 2, 2);
  setting.hidden = 12;
  setting.strategy.bucket_bytes = 64;
  setting.accumulate = 3;
  setting.rounds = 6;
  setting.iterations = 24;
  SessionOptions options = options_of(setting);
  options.files.trace = folder / "run.json.gz";
  trained(graph_of(setting), options);
  const TraceFile trace = read_trace(options.files.trace);
  std::map<std::string, std::vector<int64_t>> instances;
  for (const NodeSpan& span : trace.nodes) instances[trace.launches[size_t(span.launch)]].push_back(span.instance);
  const std::vector<int64_t> last_of_update = {2, 5, 8, 11, 14, 17, 20, 23};
  for (const char* name : {"all-reduce gradients 0", "all-reduce gradients 1", "cpu:1/mean gradients 0"}) {
    INFO(name);
    CHECK(instances[name] == last_of_update);
  }
  CHECK(instances["accumulate 0"].size() == 4 * 24);
}

// The average is taken while training goes on, and read by validation as it was at the end of its epoch.
TEST_CASE("what is validated is the model at the end of the epoch") {
  for (const StrategyOptions& strategy : kStrategies) {
    for (const auto& [devices, learners] : {std::pair{1, 3}, {2, 2}, {3, 1}}) {
      Setting setting = setting_of(strategy, {0, 0, false}, devices, learners);
      setting.test_samples = 61;
      setting.iterations = 4 * setting.rounds;
      setting.milestones = {2};  // averaging starts again while validation reads its model
      check_validations(setting, 1e-5);
    }
  }
}

// A sample is augmented the same whichever learner gets it, and the mean over learners is the mean over their batches.
TEST_CASE("averaged gradients of small batches are the gradient of a large one") {
  Setting small;
  small.strategy = ssgd();
  small.devices = 2;
  small.learners = 3;
  small.hidden = 12;
  small.momentum = 0.9;
  small.rate = 0.02;
  Setting large = small, accumulating = small;
  large.devices = accumulating.devices = large.learners = accumulating.learners = 1;
  large.batch = 6 * small.batch;
  accumulating.accumulate = 6;
  accumulating.rounds = 6 * small.rounds;
  accumulating.iterations = 6 * small.iterations;
  REQUIRE(large.samples() == small.samples());
  REQUIRE(accumulating.samples() == small.samples());
  const auto augmented = [](const Setting& setting) {
    Graph graph = graph_of(setting);
    apply_override(graph, "augment.pad=2");
    apply_override(graph, "augment.flip=1");
    return weights_of(trained(std::move(graph), options_of(setting)));
  };
  const std::vector<double> weights = augmented(small);
  CHECK(greatest_difference(weights, augmented(large)) < kTolerance);
  CHECK(greatest_difference(weights, augmented(accumulating)) < kTolerance);
  CHECK(greatest_difference(weights, executed(small)) > 100 * kTolerance);
}

TEST_CASE("learners give the same bits each time, and others with another seed") {
  for (const StrategyOptions& strategy : kStrategies) {
    Setting setting = setting_of(strategy, {0, 0.01, false}, 2, 2);
    setting.hidden = 12;
    setting.test_samples = 20;
    setting.milestones = {2};
    SessionOptions options = options_of(setting);
    options.numerics.deterministic = true;
    const auto bits = [&] { return bits_of(trained(graph_of(setting), options)); };
    INFO(to_string(setting));
    const auto first = bits();
    CHECK(first == bits());
    options.numerics.seed = 2;
    CHECK(first != bits());
  }
}

TEST_CASE("synchronisation that cannot be is refused") {
  const Setting setting = setting_of(sma(1, 0), {0, 0, false}, 2, 2);
  const auto refusal = [&](const std::string& assignment, SessionOptions options) {
    return message_of([&] {
      Graph graph = graph_of(setting);
      if (!assignment.empty()) apply_override(graph, assignment);
      run(std::move(graph), options);
    });
  };
  const SessionOptions options = options_of(setting);
  CHECK(contains(refusal("synchronize.strategy=smaa", options),
                 fmt::format("node 'synced' (arbalest.Synchronize): attribute 'strategy': unknown strategy 'smaa'; "
                             "expected {}; did you mean 'sma'?",
                             strategies_in_words())));
  CHECK(strategies_in_words().starts_with("none, ssgd, sma"));  // others may be registered
  CHECK(contains(refusal("synchronize.alpha=1.5", options), "attribute 'alpha' is 1.5; expected 0 to 1"));
  CHECK(contains(refusal("synchronize.alpha=-0.5", options), "attribute 'alpha' is -0.5"));
  CHECK(contains(refusal("synchronize.beta=2.5", options),
                 "attribute 'beta' is 2.5; expected more than 0 and at most 2"));
  CHECK(contains(refusal("synchronize.momentum=1", options), "attribute 'momentum' is 1; expected less than 1"));
  CHECK(contains(refusal("synchronize.every=0", options), "attribute 'every' is 0"));
  CHECK(contains(refusal("synchronize.every_hosts=0", options), "attribute 'every_hosts' is 0"));
  CHECK(
      contains(message_of([&] {
                 Graph graph = graph_of(setting);
                 apply_override(graph, "synchronize.strategy=ssgd");
                 apply_override(graph, "synchronize.every_hosts=2");
                 run(std::move(graph), options);
               }),
               "attribute 'every_hosts' belongs to strategy \"sma\" or \"local\"; \"ssgd\" has none: 1 takes it out"));
  CHECK(contains(message_of([&] {
                   Graph graph = graph_of(setting);
                   apply_override(graph, "synchronize.strategy=ssgd");
                   apply_override(graph, "synchronize.every=2");
                   run(std::move(graph), options);
                 }),
                 "attribute 'every' is 2; ssgd averages gradients at every update"));

  const auto refused_with = [&](const char* strategy, const char* assignment) {
    return message_of([&] {
      Graph graph = graph_of(setting);
      apply_override(graph, std::string("synchronize.strategy=") + strategy);
      apply_override(graph, assignment);
      run(std::move(graph), options);
    });
  };
  const std::vector<std::pair<const char*, std::vector<const char*>>> idle = {
      {"none", {"every=2", "every_hosts=2", "alpha=0.5", "beta=0.5", "momentum=0", "growth=0.1", "bucket_mib=1"}},
      {"ssgd", {"every_hosts=2", "alpha=0.5", "beta=0.5", "momentum=0", "follows_rate=1", "growth=0.1"}},
      {"sma", {"bucket_mib=1"}},
      {"local", {"alpha=0.5", "beta=0.5", "momentum=0", "follows_rate=1", "bucket_mib=1"}},
      {"papa", {"every_hosts=2", "beta=0.5", "momentum=0.5", "bucket_mib=1"}},
      {"diloco", {"every_hosts=2", "alpha=0.5", "follows_rate=1", "bucket_mib=1"}}};
  for (const auto& [strategy, attributes] : idle) {
    for (const char* attribute : attributes) {
      CAPTURE(strategy);
      CAPTURE(attribute);
      CHECK(contains(refused_with(strategy, (std::string("synchronize.") + attribute).c_str()),
                     fmt::format("\"{}\" has none: ", strategy)));
    }
  }
  CHECK(contains(refused_with("diloco", "synchronize.alpha=0.5"),
                 "attribute 'alpha' belongs to strategy \"sma\" or \"papa\""));
  SessionOptions replaced = options;  // the graph's strategy, sma, reads no bucket_mib
  replaced.learners.strategy = "ssgd";
  CHECK(refusal("synchronize.bucket_mib=16", replaced) == "");
  CHECK(contains(refused_with("sma", "synchronize.follows_rate=2"), "attribute 'follows_rate' is 2; expected 0 or 1"));

  SessionOptions mixed = options;
  mixed.learners.devices = {{PlanDevice::Kind::Cpu, 0}, {PlanDevice::Kind::Cuda, 0}};
  CHECK(contains(refusal("", mixed), "cpu:0 and cuda:0: learners that synchronise need devices of one kind"));
  SessionOptions divided = options;
  divided.learners.batch_total = 18;
  CHECK(contains(refusal("", divided), "--batch-total 18: expected a multiple of the 4 learners"));
  SessionOptions crowded = options;
  crowded.learners.per_device = 100;
  CHECK(contains(refusal("", crowded), "115 training samples, and one update of 200 learners takes 800"));
}

TEST_CASE("a batch of all learners is divided among them") {
  const Setting setting = setting_of(ssgd(), {0, 0, false}, 2, 2);
  Graph graph = graph_of(setting);
  apply_override(graph, "prefetch.batch=1");
  SessionOptions options = options_of(setting);
  options.learners.batch_total = 16;
  CHECK(weights_of(trained(std::move(graph), options)) == executed(setting));
}

}  // namespace synchronize_test
