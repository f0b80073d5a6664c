// SPDX-License-Identifier: Apache-2.0

// An optimiser that is not the library's: Muon, which works by parameter, against its equations.

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <cmath>

#include "graph/file/overrides.h"
#include "ops/builtin_ops.h"
#include "ops/check/check_operator.h"
#include "ops/definition.h"
#include "ops/optim/update_cpu.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"

using namespace arbalest;
using namespace arbalest::test;

namespace optimizer_test {
namespace {

// Muon (Jordan et al., 2024): v ← mv + g; w ← w − γ(λw + O), where O is v of a vector, and of a matrix v with its
// singular values brought near 1 by `steps` of Newton and Schulz: X ← aX + (bA + cA²)X with A = XXᵀ, X = v / ‖v‖ at
// first.
template <typename T>
struct MuonRule {
  static constexpr int kSlots = 1;
  T momentum;
  int64_t steps;

  static MuonRule of(const Node& update) {
    return {T(float_attribute(update, "momentum")), int_attribute(update, "newton_schulz_steps")};
  }
  MuonRule at(int32_t) const { return *this; }
  int64_t workspace(int64_t rows, int64_t columns) const {
    return rows > 1 && columns > 1 ? 2 * (rows * columns + rows * rows) : rows * columns;
  }

  void operator()(T rate, T decay, const ParameterMatrix<T, kSlots>& parameter, T* workspace) const {
    const int64_t rows = parameter.rows, columns = parameter.columns, count = rows * columns;
    T *velocity = parameter.slots[0], *x = workspace, *next = x + count, *a = next + count, *by = a + rows * rows;
    T squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      velocity[i] = momentum * velocity[i] + parameter.clip * parameter.gradient[i];
      squares += velocity[i] * velocity[i];
    }
    const bool matrix = rows > 1 && columns > 1 && squares > 0;
    const T scale = matrix ? 1 / std::sqrt(squares) : T(1);
    for (int64_t i = 0; i < count; ++i) x[i] = scale * velocity[i];
    for (int64_t step = 0; step < steps && matrix; ++step) {
      turn(rows, columns, x, next, a, by);
      std::swap(x, next);
    }
    for (int64_t i = 0; i < count; ++i) parameter.weights[i] -= rate * (decay * parameter.weights[i] + x[i]);
  }

  static void turn(int64_t rows, int64_t columns, const T* x, T* next, T* a, T* by) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < rows; ++s) {
        T sum = 0;
        for (int64_t c = 0; c < columns; ++c) sum += x[r * columns + c] * x[s * columns + c];
        a[r * rows + s] = sum;
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < rows; ++s) {
        T sum = 0;
        for (int64_t k = 0; k < rows; ++k) sum += a[r * rows + k] * a[k * rows + s];
        by[r * rows + s] = T(-4.775) * a[r * rows + s] + T(2.0315) * sum;
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        T sum = T(3.4445) * x[r * columns + c];
        for (int64_t k = 0; k < rows; ++k) sum += by[r * rows + k] * x[k * columns + c];
        next[r * columns + c] = sum;
      }
    }
  }
};

Op muon(const std::string& name = "Muon", const std::string& optimizer_name = "muon",
        const AttributeSpec& steps = int_spec("newton_schulz_steps", 5, "of Newton and Schulz")) {
  const auto check = [](const Node& train) {
    check_share(train, "momentum");
    int_attribute_from(train, "newton_schulz_steps", 1);
  };
  const OptimizerSpec optimizer{
      .name = optimizer_name, .slots = {"velocity"}, .per_tensor = true, .matrices = true, .check = check};
  Op op = update_op(name, "one step of Muon on flat arrays", optimizer,
                    {float_spec("momentum", 0.0, "share of the last step's direction that stays, below 1"), steps});
  op.domain = "own";
  op.samples = [optimizer] { return update_samples(optimizer, {{"momentum", {{"momentum", 0.9}}}}, {-1}); };
  op.cpu = update_cpu<MuonRule>;
  return op;
}

void know_muon() {
  if (!builtin_ops().find_optimizer("muon")) register_operator(muon());
}

Setting setting_of(const StrategyOptions& strategy, int devices, int learners) {
  know_muon();
  Setting setting;
  setting.strategy = strategy;
  setting.rule = "muon";
  setting.devices = devices;
  setting.learners = learners;
  setting.momentum = 0.5;
  setting.decay = 0.1;
  setting.rate = 0.01;
  setting.hidden = 12;
  return setting;
}

std::string refusal(const std::vector<std::string>& changes) {
  return message_of([&] {
    Graph graph = graph_of(setting_of({}, 1, 1));
    for (const std::string& change : changes) apply_override(graph, change);
    run(std::move(graph), options_of(setting_of({}, 1, 1)));
  });
}

}  // namespace

TEST_CASE("a registered optimiser that works by parameter trains as its equations say") {
  const std::vector<StrategyOptions> strategies = {
      {.name = "ssgd"}, {.name = "sma", .momentum = 0}, {.name = "local", .every = 4}};
  for (const StrategyOptions& strategy : strategies) {
    for (const auto& [devices, learners] : {std::pair{1, 1}, {1, 2}, {2, 2}}) {
      Setting setting = setting_of(strategy, devices, learners);
      setting.iterations = 20;
      setting.milestones = {2.4};  // SMA restarts: the slots begin anew
      for (const bool more : {false, true}) {
        if (more) {
          setting.clip = 0.5;
          setting.logits_factor = 0.25;
          setting.decay_biases = false;
          setting.accumulate = 2;
        }
        INFO(to_string(setting));
        CHECK(greatest_difference(executed(setting), simulated(setting)) < 1e-5);
      }
    }
  }
}

TEST_CASE("what is compared tells Muon from momentum alone") {
  Setting setting = setting_of({.name = "none"}, 1, 1);
  const std::vector<double> turned = simulated(setting);
  setting.rule = "";
  CHECK(greatest_difference(turned, simulated(setting)) > 1e-2);
}

TEST_CASE("a registered optimiser passes the harness") {
  know_muon();
  std::vector<std::string> faults = check_operator(*builtin_ops().find("own.Muon"));
  std::erase(faults, "own.Muon: there is a kernel for CPUs and none for CUDA");
  INFO(fmt::format("{}", fmt::join(faults, "\n")));
  CHECK(faults.empty());
}

TEST_CASE("attributes of a registered optimiser are Train's") {
  know_muon();
  const Op& train = builtin_ops().get("arbalest.Train");
  REQUIRE(train.attribute_spec("newton_schulz_steps"));
  CHECK(train.attribute_spec("newton_schulz_steps")->doc == "muon: of Newton and Schulz");
  CHECK(train.attribute_spec("momentum")->doc ==
        "lars, rmsprop, sgd and muon: share of the last step's direction that stays, below 1");
  CHECK(contains(train.attribute_spec("optimizer")->doc, "sgd or muon"));
  CHECK(contains(refusal({"train.newton_schulz_steps=0"}), "attribute 'newton_schulz_steps' is 0"));
  CHECK(contains(refusal({"train.momentum=1.5"}), "attribute 'momentum' is 1.5; expected less than 1"));
  CHECK(contains(refusal({"train.beta1=0.5"}),
                 "attribute 'beta1' belongs to optimizer \"adamw\" or \"lamb\"; \"muon\" has none: 0.9 takes it out"));
  CHECK(contains(refusal({"train.optimizer=sgd", "train.newton_schulz_steps=3"}),
                 "attribute 'newton_schulz_steps' belongs to optimizer \"muon\"; \"sgd\" has none: 5 takes it out"));
  CHECK(contains(refusal({"train.optimizer=moun"}), "did you mean 'muon'?"));
}

TEST_CASE("an optimiser that contradicts another is refused, with the reason") {
  know_muon();
  const auto refused = [](Op op) { return message_of([&] { register_operator(std::move(op)); }); };
  CHECK(refused(muon("Again")) == "optimizer 'muon' is registered already");
  CHECK(refused(muon("Other", "other", int_spec("newton_schulz_steps", 4, "another default"))) ==
        "optimizer 'other': arbalest.Train has another attribute 'newton_schulz_steps'");
  CHECK(refused(muon("Other", "other", float_spec("gamma", 0.1, "the schedule's"))) ==
        "optimizer 'other': arbalest.Train has another attribute 'gamma'");
  CHECK_FALSE(builtin_ops().find("own.Other"));
  CHECK_FALSE(builtin_ops().find("own.Again"));
}

}  // namespace optimizer_test
