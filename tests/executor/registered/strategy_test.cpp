// SPDX-License-Identifier: Apache-2.0

// A strategy that is not the library's, that of examples/outside, against its equation.

#include <doctest/doctest.h>

#include "examples/outside/own.h"
#include "executor/plan/strategy.h"
#include "executor/session/run_state.h"
#include "graph/file/overrides.h"
#include "tests/executor/fixture.h"
#include "tests/executor/plan/races.h"
#include "tests/executor/session/reference.h"

using namespace arbalest;
using namespace arbalest::test;

namespace strategy_test {
namespace {

void know_elastic() {
  if (!find_strategy("elastic")) register_elastic();
}

Setting setting_of(int devices, int learners, int64_t every, double alpha) {
  know_elastic();
  Setting setting;
  setting.strategy = {.name = "elastic", .every = every, .alpha = alpha};
  setting.devices = devices;
  setting.learners = learners;
  setting.momentum = 0.9;
  setting.decay = 0.01;
  setting.rate = 0.01;
  return setting;
}

void check_against_simulation(const Setting& setting) {
  INFO(to_string(setting));
  CHECK(greatest_difference(executed(setting), simulated(setting)) < 1e-6);
}

const std::vector<std::pair<int, int>> kLayouts = {{1, 2}, {1, 3}, {2, 1}, {2, 2}};

}  // namespace

TEST_CASE("a registered strategy trains as its equation says") {
  for (const auto& [devices, learners] : kLayouts) {
    for (const int64_t every : {1, 4}) {
      Setting setting = setting_of(devices, learners, every, 0.3);
      check_against_simulation(setting);
      setting.ema = 0.9;
      setting.accumulate = 2;
      check_against_simulation(setting);
      setting.hidden = 12;
      setting.accumulate = 1;
      setting.test_samples = 61;
      setting.iterations = 4 * setting.rounds;
      check_validations(setting, 1e-5);
    }
  }
}

TEST_CASE("what is compared tells a registered strategy from others and its numbers from each other") {
  std::vector<std::vector<double>> models;
  for (const double alpha : {0.1, 0.5, 1.0}) models.push_back(simulated(setting_of(1, 2, 4, alpha)));
  Setting local = setting_of(1, 2, 4, 1);
  local.strategy.name = "local";
  CHECK(greatest_difference(models.back(), simulated(local)) < 1e-12);
  models.back() = simulated(setting_of(1, 1, 4, 1));
  for (size_t a = 0; a < models.size(); ++a) {
    for (size_t b = 0; b < a; ++b) CHECK(greatest_difference(models[a], models[b]) > 1e-5);
  }
}

TEST_CASE("plans of a registered strategy have no races") {
  for (const auto& [devices, learners] : kLayouts) {
    Setting setting = setting_of(devices, learners, 2, 0.3);
    setting.iterations = 20;
    setting.test_samples = 20;
    for (const double ema : {0.0, 0.9}) {
      setting.ema = ema;
      const Prepared prepared = prepare(graph_of(setting), options_of(setting));
      CHECK(Races(make_plan(prepared.program, prepared.request)).first() == "");
    }
  }
}

TEST_CASE("learners of a registered strategy go on under others") {
  know_elastic();
  const auto bytes = [](float number) {
    std::vector<std::byte> bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
  };
  RunState state;
  for (const float weight : {1.0f, 3.0f}) state.learners.push_back({bytes(weight), {}, {bytes(weight)}});
  const StrategyOptions elastic{.name = "elastic"}, ssgd{.name = "ssgd"};
  CHECK(shared_model(state, elastic).weights == bytes(2));
  const RunState more = with_learners(state, 1, 3, elastic, elastic);
  CHECK(more.learners[0].weights == bytes(1));
  CHECK(more.learners[1].weights == bytes(3));
  CHECK(more.learners[2].weights == bytes(2));
  CHECK(more.averages.empty());
  CHECK(with_learners(state, 1, 2, elastic, ssgd).learners[1].weights == bytes(2));
  CHECK(with_learners(state, 1, 2, elastic, {.name = "sma"}).averages.at(0).now == bytes(2));
}

TEST_CASE("a strategy that cannot be one is refused, with the reason") {
  know_elastic();
  struct Named final : Strategy {
    using Strategy::Strategy;
  };
  const auto refusal = [](StrategySpec facts) {
    return message_of([&] { register_strategy(std::make_unique<Named>(std::move(facts))); });
  };
  CHECK(refusal({.name = "elastic"}) == "strategy 'elastic' is registered already");
  CHECK(refusal({.name = "sma"}) == "strategy 'sma' is registered already");
  CHECK(contains(refusal({.name = ""}), "it has no name"));
  CHECK(contains(refusal({.name = "both", .sums_gradients = true, .averages_models = true}), "expected one of these"));
  CHECK(contains(refusal({.name = "pulls", .corrects = true}), "expected that it averages models"));
  CHECK(contains(refusal({.name = "again", .averages_models = true, .restarts = true}), "expected that it corrects"));
  CHECK_FALSE(find_strategy("both"));

  const Setting setting = setting_of(1, 2, 1, 0.5);
  CHECK(contains(message_of([&] {
                   Graph graph = graph_of(setting);
                   apply_override(graph, "synchronize.strategy=elastics");
                   run(std::move(graph), options_of(setting));
                 }),
                 "expected none, ssgd, sma, local, papa, diloco or elastic; did you mean 'elastic'?"));
}

}  // namespace strategy_test
