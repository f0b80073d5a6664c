// SPDX-License-Identifier: Apache-2.0

// Validate: asks for a validation of the trained weights; the executor plans it.

#include <fmt/format.h>

#include <algorithm>

#include "graph/measures.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_validate(InferContext& context) {
  if (context.input(0).dtype != DataType::Token) {
    context.fail(
        fmt::format("input 'trained' is {}; expected a token, as Train makes it", to_string(context.input(0))));
  }
  for (size_t i = 1; i < context.input_count(); ++i) {
    const Node* producer = context.producer(i);
    const bool rows = producer && producer->op->metric && producer->op->metric->keeps == MetricSpec::Keeps::Rows &&
                      producer->outputs[0] == context.node().inputs[i];
    if (!rows) expect_input(context, i, {floating_input(context, i).dtype, {}}, "a scalar metric");
    const auto& inputs = context.node().inputs;
    if (std::find(inputs.begin() + 1, inputs.begin() + std::ptrdiff_t(i), inputs[i]) ==
        inputs.begin() + std::ptrdiff_t(i))
      continue;
    context.fail(fmt::format("lists the metric '{}' twice", context.graph().values[inputs[i]].name));
  }
  int_attribute_from(context.node(), "batch", 0);
  int_attribute_from(context.node(), "every_epochs", 1);
  constexpr int64_t kMost = 1'000'000;  // batches: a plan takes time for each
  if (int_attribute_from(context.node(), "recalibrate", 0) > kMost) {
    context.fail(fmt::format("attribute 'recalibrate' is {}; expected at most {} batches",
                             int_attribute(context.node(), "recalibrate"), kMost));
  }
  for (const std::string& text : strings_attribute(context.node(), "directions")) {
    const MetricDirection stated = parse_direction(text);
    std::vector<std::string> listed;
    for (size_t i = 1; i < context.input_count(); ++i) {
      listed.push_back(context.graph().values[context.node().inputs[i]].name);
    }
    if (stated.better && std::find(listed.begin(), listed.end(), stated.metric) != listed.end()) continue;
    context.fail(
        fmt::format("attribute 'directions' has '{}'; expected NAME:min or NAME:max of a metric, as in {}:min{}", text,
                    listed.back(), did_you_mean(stated.metric, listed)));
  }
  context.set_output(0, {DataType::Token, {}});
}

}  // namespace

void register_metrics_validate(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Validate",
                .doc = "the metrics over another split, scalars as means over samples, with the trained weights",
                .inputs = {{.name = "trained"}, {.name = "metrics", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "validated"}},
                .attributes = {string_spec("split", "test", "the split that replaces the one trained on"),
                               int_spec("batch", 0, "samples of a batch; 0: as in training"),
                               int_spec("every_epochs", 1, "epochs from one validation to the next"),
                               int_spec("recalibrate", 0,
                                        "training batches that the statistics of batch norms are estimated with before "
                                        "each validation; 0: those of training are used"),
                               strings_spec("directions", {},
                                            "NAME:min or NAME:max, for metrics whose operators do not say which way is "
                                            "better")},
                .side_effect = true,
                .infer = infer_validate});
}

}  // namespace arbalest
