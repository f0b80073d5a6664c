// SPDX-License-Identifier: Apache-2.0

// An optimiser that is not the library's and works by a parameter's matrix, against its equations.

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

// v ← mv + g; w ← w − γ(λw + O), where O is v of a vector, and of a matrix v with each row divided by its norm + ε.
template <typename T>
struct RowsRule {
  static constexpr int kSlots = 1;
  T momentum, epsilon;

  static RowsRule of(const Node& update) {
    return {T(float_attribute(update, "momentum")), T(float_attribute(update, "row_epsilon"))};
  }
  RowsRule at(int32_t) const { return *this; }
  int64_t workspace(int64_t, int64_t columns) const { return columns; }

  void operator()(T rate, T decay, const ParameterMatrix<T, kSlots>& parameter, T* row) const {
    for (int64_t begin = 0; begin < parameter.rows * parameter.columns; begin += parameter.columns) {
      T squares = 0;
      for (int64_t i = 0; i < parameter.columns; ++i) {
        T& velocity = parameter.slots[0][begin + i];
        row[i] = velocity = momentum * velocity + parameter.clip * parameter.gradient[begin + i];
        squares += velocity * velocity;
      }
      const T share = parameter.columns == 1 ? T(1) : 1 / (std::sqrt(squares) + epsilon);
      for (int64_t i = 0; i < parameter.columns; ++i) {
        T& w = parameter.weights[begin + i];
        w -= rate * (decay * w + share * row[i]);
      }
    }
  }
};

Op rows(const std::string& name = "Rows", const std::string& optimizer_name = "rows",
        const AttributeSpec& epsilon = float_spec("row_epsilon", 0.25, "added to the norm of a row")) {
  const auto check = [](const Node& train) {
    check_share(train, "momentum");
    check_above_0(train, "row_epsilon");
  };
  const OptimizerSpec optimizer{
      .name = optimizer_name, .slots = {"velocity"}, .per_tensor = true, .matrices = true, .check = check};
  Op op = update_op(name, "one step by rows on flat arrays", optimizer,
                    {float_spec("momentum", 0.0, "share of the last step's direction that stays, below 1"), epsilon});
  op.domain = "own";
  op.samples = [optimizer] { return update_samples(optimizer, {{"momentum", {{"momentum", 0.9}}}}, {-1}); };
  op.cpu = update_cpu<RowsRule>;
  return op;
}

void know_rows() {
  if (!builtin_ops().find_optimizer("rows")) register_operator(rows());
}

Setting setting_of(const StrategyOptions& strategy, int devices, int learners) {
  know_rows();
  Setting setting;
  setting.strategy = strategy;
  setting.rule = "rows";
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

TEST_CASE("what is compared tells steps by rows from momentum alone") {
  Setting setting = setting_of({.name = "none"}, 1, 1);
  const std::vector<double> turned = simulated(setting);
  setting.rule = "";
  CHECK(greatest_difference(turned, simulated(setting)) > 1e-2);
}

TEST_CASE("a registered optimiser passes the harness") {
  know_rows();
  std::vector<std::string> faults = check_operator(*builtin_ops().find("own.Rows"));
  std::erase(faults, "own.Rows: there is a kernel for CPUs and none for CUDA");
  INFO(fmt::format("{}", fmt::join(faults, "\n")));
  CHECK(faults.empty());
}

TEST_CASE("attributes of a registered optimiser are Train's") {
  know_rows();
  const Op& train = builtin_ops().get("arbalest.Train");
  REQUIRE(train.attribute_spec("row_epsilon"));
  CHECK(train.attribute_spec("row_epsilon")->doc == "rows: added to the norm of a row");
  CHECK(train.attribute_spec("momentum")->doc ==
        "lars, muon, rmsprop, sgd and rows: share of the last step's direction that stays, below 1");
  CHECK(contains(train.attribute_spec("optimizer")->doc, "sgd or rows"));
  CHECK(contains(refusal({"train.row_epsilon=0"}), "attribute 'row_epsilon' is 0; expected more than 0"));
  CHECK(contains(refusal({"train.momentum=1.5"}), "attribute 'momentum' is 1.5; expected less than 1"));
  CHECK(contains(refusal({"train.beta1=0.5"}),
                 "attribute 'beta1' belongs to optimizer \"adamw\" or \"lamb\"; \"rows\" has none: 0.9 takes it out"));
  CHECK(contains(refusal({"train.optimizer=sgd", "train.row_epsilon=0.5"}),
                 "attribute 'row_epsilon' belongs to optimizer \"rows\"; \"sgd\" has none: 0.25 takes it out"));
  CHECK(contains(refusal({"train.optimizer=rosw"}), "did you mean 'rows'?"));
}

TEST_CASE("an optimiser that contradicts another is refused, with the reason") {
  know_rows();
  const auto refused = [](Op op) { return message_of([&] { register_operator(std::move(op)); }); };
  CHECK(refused(rows("Again")) == "optimizer 'rows' is registered already");
  CHECK(refused(rows("Other", "other", float_spec("row_epsilon", 0.5, "another default"))) ==
        "optimizer 'other': arbalest.Train has another attribute 'row_epsilon'");
  CHECK(refused(rows("Other", "other", float_spec("gamma", 0.1, "the schedule's"))) ==
        "optimizer 'other': arbalest.Train has another attribute 'gamma'");
  CHECK_FALSE(builtin_ops().find("own.Other"));
  CHECK_FALSE(builtin_ops().find("own.Again"));
}

}  // namespace optimizer_test
