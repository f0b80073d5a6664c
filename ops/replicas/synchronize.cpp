// Synchronize: how learners agree on one model; the executor plans it.

#include "ops/replicas/synchronize.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr std::array<std::string_view, 4> kStrategies = {"none", "ssgd", "sma", "local"};
constexpr double kMiB = 1 << 20;

void infer_synchronize(InferContext& context) {
  const Node& node = context.node();
  if (context.input(0).dtype != DataType::Token) {
    context.fail(
        fmt::format("input 'trained' is {}; expected a token, as Train makes it", to_string(context.input(0))));
  }
  strategy_of(node);
  context.set_output(0, {DataType::Token, {}});
}

}  // namespace

std::string_view name_of(Strategy::Kind kind) {
  return kStrategies[size_t(kind)];
}

Strategy::Kind parse_strategy(std::string_view name) {
  for (size_t i = 0; i < kStrategies.size(); ++i) {
    if (kStrategies[i] == name) return Strategy::Kind(i);
  }
  const std::vector<std::string> known(kStrategies.begin(), kStrategies.end());
  throw GraphError(
      fmt::format("unknown strategy '{}'; expected none, ssgd, sma or local{}", name, did_you_mean(name, known)));
}

Strategy strategy_of(const Node& node) {
  Strategy strategy;
  try {
    strategy.kind = parse_strategy(string_attribute(node, "strategy"));
  } catch (const GraphError& error) {
    fail(node, std::string("attribute 'strategy': ") + error.what());
  }
  strategy.every = int_attribute_from(node, "every", 1);
  if (strategy.kind == Strategy::Kind::Ssgd && strategy.every != 1) {
    fail(node, fmt::format("attribute 'every' is {}; ssgd averages gradients at every update", strategy.every));
  }
  strategy.alpha = float_attribute(node, "alpha");
  if (!(strategy.alpha > 0 && strategy.alpha <= 1)) {
    fail(node, fmt::format("attribute 'alpha' is {}; expected more than 0 and at most 1", strategy.alpha));
  }
  strategy.beta = float_attribute(node, "beta");
  if (!(strategy.beta > 0 && strategy.beta <= 2)) {
    fail(node, fmt::format("attribute 'beta' is {}; expected more than 0 and at most 2", strategy.beta));
  }
  strategy.momentum = float_attribute(node, "momentum");
  if (!(strategy.momentum < 1) || !std::isfinite(strategy.momentum)) {
    fail(node, fmt::format("attribute 'momentum' is {}; expected less than 1, or a negative number for the default",
                           strategy.momentum));
  }
  const double bucket = float_attribute(node, "bucket_mib");
  if (!(bucket > 0 && bucket <= 1e6)) {
    fail(node, fmt::format("attribute 'bucket_mib' is {}; expected more than 0 and at most 1e6", bucket));
  }
  strategy.bucket_bytes = int64_t(bucket * kMiB);
  return strategy;
}

Strategy resolved(Strategy strategy, int64_t learners, const Node& train) {
  if (learners == 1) strategy.kind = Strategy::Kind::None;
  const bool plain = string_attribute(train, "optimizer") == "sgd" && float_attribute(train, "momentum") == 0;
  if (strategy.momentum < 0) strategy.momentum = plain ? 0.9 : 0;
  return strategy;
}

void register_replicas_synchronize(OpRegistry& registry) {
  const Strategy defaults;
  registry.add(
      {.domain = "arbalest",
       .name = "Synchronize",
       .doc = "makes the learners agree on one model",
       .inputs = {{.name = "trained"}},
       .outputs = {{.name = "synced"}},
       .attributes = {string_spec("strategy", std::string(name_of(defaults.kind)), "sma, ssgd, local or none"),
                      int_spec("every", defaults.every, "updates from one averaging to the next"),
                      float_spec("alpha", defaults.alpha,
                                 "sma: share of its distance from the average that a learner gives up"),
                      float_spec("beta", defaults.beta,
                                 "sma: share of its distance from the learners' mean that the average gives "
                                 "up; Crossbow has learners · alpha"),
                      float_spec("momentum", defaults.momentum,
                                 "sma: of the average; negative: 0.9 where Train is sgd without momentum, else 0"),
                      float_spec("bucket_mib", double(defaults.bucket_bytes) / kMiB,
                                 "ssgd: MiB of gradients that are averaged together, at least")},
       .side_effect = true,
       .infer = infer_synchronize});
}

}  // namespace arbalest
