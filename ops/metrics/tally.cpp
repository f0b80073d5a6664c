// SPDX-License-Identifier: Apache-2.0

// Tally: running sums of metrics over batches, weighted by the samples that counted or by a weight of the metric's own.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/metrics/operands.h"

namespace arbalest {
namespace {

// Positions of the inputs: the state, the metrics, the weights of some of them, and with skips ClipFactor's factor.
struct TallyInputs {
  bool skips;
  std::vector<int64_t> weighed;  // by weight: the metric that it is of
  int64_t metrics;

  TallyInputs(const Node& node, size_t inputs)
      : skips(flag_attribute(node, "skips")),
        weighed(ints_attribute(node, "weighed")),
        metrics(int64_t(inputs) - 1 - int64_t(weighed.size()) - (skips ? 1 : 0)) {}
  size_t first_weight() const { return size_t(metrics) + 1; }
  size_t factor() const { return first_weight() + weighed.size(); }
  int64_t sums() const { return 1 + metrics + int64_t(weighed.size()); }
};

void infer_tally(InferContext& context) {
  const TallyInputs place(context.node(), context.input_count());
  for (const int64_t metric : place.weighed) {
    if (metric < 0 || metric >= place.metrics) {
      context.fail(fmt::format("attribute 'weighed' holds {}; expected numbers of {} metrics", metric, place.metrics));
    }
  }
  expect_input(context, 0, {DataType::Float64, {place.sums() + (place.skips ? 2 : 0)}},
               fmt::format("one entry for the samples, one for each of {} metrics and {} weights{}", place.metrics,
                           place.weighed.size(), place.skips ? ", and two for updates" : ""));
  for (size_t i = 1; i < context.input_count(); ++i) {
    const bool factor = place.skips && i == place.factor();
    expect_input(context, i, {floating_input(context, i).dtype, factor ? Shape{1} : Shape{}}, "a scalar");
  }
  context.set_output(0, context.input(0));
}

std::unique_ptr<Kernel> tally_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const TallyInputs place(request.node, request.inputs.size());
  std::vector<size_t> weight_of(size_t(place.metrics), 0);  // by metric: its input; 0: the samples
  for (size_t w = 0; w < place.weighed.size(); ++w) weight_of[size_t(place.weighed[w])] = place.first_weight() + w;
  return make_kernel([place, weight_of](const KernelContext& context) {
    const double* before = input<double>(context, TallyInput::State);
    double* after = output<double>(context, 0);
    const bool counts = !place.skips || std::isfinite(double(*input<T>(context, TallyInput::Metrics)));
    const double samples = counts ? context.scalars->valid : 0;
    const auto weight = [&](size_t at) { return at == 0 || samples == 0 ? samples : double(*input<T>(context, at)); };
    after[0] = before[0] + samples;
    for (size_t i = 0; i < weight_of.size(); ++i) {
      // A batch that weighs nothing, such as one of padding only, counts nothing, whatever its metrics hold. Of one
      // whose weight is −n the mean times n counts, and no weight: all its samples weigh 0, but their sum is not 0.
      const double by = std::abs(weight(weight_of[i]));
      after[i + 1] = before[i + 1] + (by > 0 ? by * double(*input<T>(context, i + 1)) : 0.0);
    }
    for (size_t w = place.first_weight(); w < place.factor(); ++w) {
      const double own = weight(w);
      after[w] = before[w] + (own < 0 ? 0.0 : own);
    }
    if (!place.skips) return;
    const bool due = context.scalars->update != 0, skipped = due && double(*input<T>(context, place.factor())) < 0;
    const size_t updates = place.factor();  // each sum stands where its input does
    after[updates] = before[updates] + (due ? 1 : 0);
    after[updates + 1] = before[updates + 1] + (skipped ? 1 : 0);
  });
}

std::vector<Sample> tally_samples() {
  const Sample::Input scalar{{DataType::Float32, {}}, -1, 1, false};
  const auto sample = [&](std::string name, int64_t metrics, int32_t valid) {
    std::vector<Sample::Input> inputs(size_t(metrics) + 1, scalar);
    inputs[0] = {{DataType::Float64, {metrics + 1}}, 0, 100, false};
    return Sample{.name = std::move(name), .inputs = inputs, .tolerance = 1e-6, .scalars = {.valid = valid}};
  };
  const auto skipping = [&](std::string name, double loss, double factor, int32_t update) {
    Sample made{.name = std::move(name),
                .inputs = {{{DataType::Float64, {5}}, 0, 100, false}, scalar, scalar, scalar},
                .attributes = {{"skips", 1}},
                .tolerance = 1e-6,
                .scalars = {.valid = 8, .update = update}};
    made.inputs[TallyInput::Metrics].low = made.inputs[TallyInput::Metrics].high = loss;
    made.inputs.back() = {{DataType::Float32, {1}}, factor, factor, false};
    return made;
  };
  // A weight for the first of two metrics, and with skips for the second.
  const auto weighing = [&](std::string name, double low, double high, int32_t valid, bool skips) {
    Sample made{.name = std::move(name),
                .inputs = {{{DataType::Float64, {skips ? 6 : 4}}, 0, 100, false},
                           scalar,
                           scalar,
                           {{DataType::Float32, {}}, low, high, false}},
                .attributes = {{"skips", int64_t{skips}}, {"weighed", std::vector<int64_t>{skips ? 1 : 0}}},
                .tolerance = 1e-6,
                .scalars = {.valid = valid, .update = 1}};
    if (skips) made.inputs.push_back({{DataType::Float32, {1}}, 0.5, 0.5, false});
    return made;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {sample("one metric", 1, 64),
          sample("five metrics", 5, 17),
          sample("nothing valid", 2, 0),
          skipping("an update", 2, 0.5, 1),
          skipping("a skipped update", kInfinity, -1, 1),
          skipping("a loss that is finite, of a skipped update", 2, -1, 1),
          skipping("no update", kInfinity, -1, 0),
          weighing("a weight", 0.5, 20, 17, false),
          weighing("a weight of 0", 0, 0, 17, false),
          weighing("a weight below 0", -17, -17, 17, false),
          weighing("a weight, nothing valid", 3, 3, 0, false),
          weighing("a weight, an update", 0.5, 20, 8, true)};
}

}  // namespace

void register_metrics_tally(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "Tally",
       .doc = "adds the valid samples, and each metric times them or times a weight of its own, and those weights "
              "to the state; with skips, but for batches whose first metric is not finite, and counts updates "
              "that were due, and those that were skipped",
       .inputs = {{.name = "state"}, {.name = "metrics", .arity = OperandSpec::Variadic}},
       .outputs = {{.name = "updated"}},
       .attributes = {int_spec("skips", 0, "1: the last input is no metric, but ClipFactor's factor"),
                      ints_spec("weighed", {}, "for each weight, which follow the metrics: which metric's it is")},
       .internal = true,
       .side_effect = true,
       .infer = infer_tally,
       .samples = tally_samples,
       .aliases = {{0, 0}},
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return tally_cpu(r, t); }, 1)});
}

}  // namespace arbalest
