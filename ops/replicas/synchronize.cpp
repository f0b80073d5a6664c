// SPDX-License-Identifier: Apache-2.0

// Synchronize: how learners agree on one model; the executor plans it.

#include "ops/replicas/synchronize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <mutex>

#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr double kMiB = 1 << 20;

// Known strategies. All of it may be called from any thread.
class StrategySpecs {
 public:
  void add(const StrategySpec& spec) {
    const std::lock_guard lock(mutex_);
    if (found(spec.name)) throw GraphError(fmt::format("strategy '{}' is registered already", spec.name));
    all_.push_back(spec);
  }
  const StrategySpec* find(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    return found(name);
  }
  std::vector<std::string> names(const std::function<bool(const StrategySpec&)>& wanted) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const StrategySpec& spec : all_) {
      if (wanted(spec)) names.push_back(spec.name);
    }
    return names;
  }

 private:
  const StrategySpec* found(std::string_view name) const {
    const auto at = std::find_if(all_.begin(), all_.end(), [&](const StrategySpec& spec) { return spec.name == name; });
    return at == all_.end() ? nullptr : &*at;
  }

  mutable std::mutex mutex_;
  std::deque<StrategySpec> all_;  // a deque: addresses stay
};

StrategySpecs& specs() {
  static StrategySpecs known;
  return known;
}

bool reads(const StrategySpec& spec, const std::string& attribute) {
  return std::find(spec.reads.begin(), spec.reads.end(), attribute) != spec.reads.end();
}

// The node of the same operator whose token this one takes, if there is one.
const Node* node_before(const Graph& graph, const Node& node) {
  const NodeId producer = graph.values[node.inputs[0]].producer;
  const bool follows = producer != kNone && graph.nodes[producer].op == node.op;
  return follows ? &graph.nodes[producer] : nullptr;
}

// Strategies that follow each other are a chain of nodes, each from a later epoch on.
void check_order(const InferContext& context) {
  const Node& node = context.node();
  for (const Node& other : context.graph().nodes) {
    if (&other == &node || other.op != node.op || other.inputs[0] != node.inputs[0]) continue;
    fail(node, fmt::format("takes the same token as '{}'; a strategy that follows another takes that one's output",
                           other.name));
  }
  const int64_t from = int_attribute_from(node, "from", 0);
  const Node* before = node_before(context.graph(), node);
  if (!before && from > 0) {
    fail(node, fmt::format("attribute 'from' is {}; expected 0, since there is no strategy before it", from));
  }
  if (before && from <= int_attribute(*before, "from")) {
    fail(node, fmt::format("attribute 'from' is {}; expected more than {}, the epoch from which '{}' holds", from,
                           int_attribute(*before, "from"), before->name));
  }
}

void infer_synchronize(InferContext& context) {
  const Node& node = context.node();
  if (context.input(0).dtype != DataType::Token) {
    context.fail(
        fmt::format("input 'trained' is {}; expected a token, as Train makes it", to_string(context.input(0))));
  }
  strategy_options(node);
  check_order(context);
  context.set_output(0, {DataType::Token, {}});
}

}  // namespace

void add_strategy_spec(const StrategySpec& spec) {
  const auto refuse = [&](const char* why) { throw GraphError(fmt::format("strategy '{}': {}", spec.name, why)); };
  if (spec.name.empty()) refuse("it has no name");
  if (int(spec.alone) + int(spec.sums_gradients) + int(spec.averages_models) > 1) {
    refuse("its learners train alone, sum gradients or average models; expected one of these at most");
  }
  if ((spec.replaces_models || spec.corrects || spec.averages_hosts_apart) && !spec.averages_models) {
    refuse("it replaces models or corrects towards an average; expected that it averages models");
  }
  if ((spec.restarts || spec.draws_to_mean) && !spec.corrects) {
    refuse("it starts again from an average, or draws learners to their mean; expected that it corrects");
  }
  specs().add(spec);
}

std::vector<std::string> strategy_names() {
  return specs().names([](const StrategySpec&) { return true; });
}

std::string strategies_in_words() {
  const std::vector<std::string> names = strategy_names();
  std::string words;
  for (size_t i = 0; i < names.size(); ++i) {
    words += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  }
  return words;
}

const StrategySpec& strategy_spec(std::string_view name) {
  if (const StrategySpec* spec = specs().find(name)) return *spec;
  throw GraphError(fmt::format("unknown strategy '{}'; expected {}{}", name, strategies_in_words(),
                               did_you_mean(name, strategy_names())));
}

StrategyOptions strategy_options(const Node& node) {
  StrategyOptions options;
  options.name = string_attribute(node, "strategy");
  const auto spec = [&]() -> const StrategySpec& {
    try {
      return strategy_spec(options.name);
    } catch (const GraphError& error) {
      fail(node, std::string("attribute 'strategy': ") + error.what());
    }
  }();
  options.every = int_attribute(node, "every");
  if (options.every != kOwnNumber) int_attribute_from(node, "every", 1);
  if (spec.sums_gradients && options.every != kOwnNumber && options.every != 1) {
    fail(node, fmt::format("attribute 'every' is {}; {} averages gradients at every update", options.every, spec.name));
  }
  options.every_hosts = int_attribute_from(node, "every_hosts", 1);
  options.alpha = float_attribute(node, "alpha");
  if (options.alpha != kOwnNumber && !(options.alpha >= 0 && options.alpha <= 1)) {
    fail(node, fmt::format("attribute 'alpha' is {}; expected 0 to 1", options.alpha));
  }
  options.beta = float_attribute(node, "beta");
  if (options.beta != kOwnNumber && !(options.beta > 0 && options.beta <= 2)) {
    fail(node, fmt::format("attribute 'beta' is {}; expected more than 0 and at most 2", options.beta));
  }
  options.momentum = float_attribute(node, "momentum");
  if (!(options.momentum < 1) || !std::isfinite(options.momentum)) {
    fail(node, fmt::format("attribute 'momentum' is {}; expected less than 1, or a negative number for the default",
                           options.momentum));
  }
  options.follows_rate = flag_attribute(node, "follows_rate");
  options.growth = float_attribute(node, "growth");
  if (!(options.growth >= 0) || !std::isfinite(options.growth)) {
    fail(node, fmt::format("attribute 'growth' is {}; expected at least 0", options.growth));
  }
  const double bucket = float_attribute(node, "bucket_mib");
  if (!(bucket > 0 && bucket <= 1e6)) {
    fail(node, fmt::format("attribute 'bucket_mib' is {}; expected more than 0 and at most 1e6", bucket));
  }
  options.bucket_bytes = int64_t(bucket * kMiB);
  return options;
}

void check_read(const Node& node) {
  const StrategySpec& spec = strategy_spec(string_attribute(node, "strategy"));
  for (const AttributeSpec& attribute : node.op->attributes) {
    const std::vector<std::string> readers =
        specs().names([&](const StrategySpec& each) { return reads(each, attribute.name); });
    refuse_unread(node, attribute, "strategy", spec.name, readers);
  }
}

std::vector<const Node*> synchronize_nodes(const Graph& graph) {
  std::vector<const Node*> chain;
  for (const Node& node : graph.nodes) {
    if (node.op->qualified_name() == "arbalest.Synchronize") chain.push_back(&node);
  }
  const auto from = [](const Node* node) { return int_attribute(*node, "from"); };
  std::sort(chain.begin(), chain.end(), [&](const Node* a, const Node* b) { return from(a) < from(b); });
  return chain;
}

StrategyOptions resolved(StrategyOptions options, int64_t learners, const Node& train) {
  if (learners == 1) options.name = kNoStrategy;
  const StrategySpec& spec = strategy_spec(options.name);
  if (options.every == kOwnNumber) options.every = spec.every;
  if (options.alpha < 0) options.alpha = spec.alpha;
  if (options.beta < 0) options.beta = spec.beta;
  if (options.momentum < 0) options.momentum = spec.momentum;
  if (spec.draws_to_mean) {
    options.beta = 1;
    options.momentum = 0;
  }
  const Op* rule = builtin_ops().find_optimizer(string_attribute(train, "optimizer"));
  const bool plain = rule && rule->optimizer->plain && rule->optimizer->plain(train);
  if (options.momentum < 0) options.momentum = plain ? 0.9 : 0;
  return options;
}

void register_replicas_synchronize(OpRegistry& registry) {
  const StrategyOptions defaults;
  registry.add(
      {.domain = "arbalest",
       .name = "Synchronize",
       .doc = "makes the learners agree on one model",
       .inputs = {{.name = "trained"}},
       .outputs = {{.name = "synced"}},
       .attributes =
           {string_spec("strategy", defaults.name, strategies_in_words()),
            int_spec("every", kOwnNumber,
                     "updates from one averaging to the next; -1: 10 for papa, 50 for diloco, else 1"),
            int_spec("every_hosts", defaults.every_hosts,
                     "sma and local: averagings from one over all hosts to the next; others are within each"),
            float_spec("alpha", kOwnNumber,
                       "sma and papa: share of its distance from the average that a learner gives up; -1: 0.5 "
                       "for sma, 0.01 for papa"),
            float_spec("beta", kOwnNumber,
                       "sma and diloco: share of its distance from the learners' mean that the average gives up; "
                       "-1: 1 for sma, 0.7 for diloco. Crossbow has learners · alpha"),
            float_spec("momentum", kOwnNumber,
                       "sma and diloco: of the average; negative: 0.9 for diloco; for sma 0.9 where Train is sgd "
                       "without momentum, else 0"),
            int_spec("follows_rate", 0,
                     "sma and papa, 1: alpha is multiplied by the learning rate over its greatest value"),
            float_spec(
                "growth", 0,
                "updates from one averaging to the next grow to (growth / learning rate)^2 where that is more, in "
                "powers of two from epoch to epoch; 0: they stay"),
            int_spec("from", 0, "the epoch from which it takes the place of the Synchronize whose output it takes"),
            float_spec("bucket_mib", double(defaults.bucket_bytes) / kMiB,
                       "ssgd: MiB of gradients that are averaged together, at least")},
       .side_effect = true,
       .infer = infer_synchronize});
}

}  // namespace arbalest
