// Tally: running sums of metrics over batches, weighted by the samples that counted.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_tally(InferContext& context) {
  const bool skips = flag_attribute(context.node(), "skips");
  const int64_t metrics = int64_t(context.input_count()) - (skips ? 2 : 1);
  expect_input(context, 0, {DataType::Float64, {metrics + (skips ? 3 : 1)}},
               fmt::format("one entry for the samples and one for each of {} metrics{}", metrics,
                           skips ? ", and two for updates" : ""));
  for (size_t i = 1; i < context.input_count(); ++i) {
    const bool factor = skips && i + 1 == context.input_count();
    expect_input(context, i, {floating_input(context, i).dtype, factor ? Shape{1} : Shape{}}, "a scalar");
  }
  context.set_output(0, context.input(0));
}

std::unique_ptr<Kernel> tally_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const bool skips = flag_attribute(request.node, "skips");
  const size_t metrics = request.inputs.size() - (skips ? 2 : 1);
  return make_kernel([metrics, skips](const KernelContext& context) {
    const double* before = input<double>(context, 0);
    double* after = output<double>(context, 0);
    const bool counts = !skips || std::isfinite(double(*input<T>(context, 1)));
    const double samples = counts ? context.scalars->valid : 0;
    after[0] = before[0] + samples;
    for (size_t i = 1; i <= metrics; ++i) {
      // A batch of padding only counts nothing, whatever its metrics hold.
      after[i] = before[i] + (samples > 0 ? samples * double(*input<T>(context, i)) : 0.0);
    }
    if (!skips) return;
    const bool due = context.scalars->update != 0, skipped = due && double(*input<T>(context, metrics + 1)) < 0;
    after[metrics + 1] = before[metrics + 1] + (due ? 1 : 0);
    after[metrics + 2] = before[metrics + 2] + (skipped ? 1 : 0);
  });
}

std::vector<Sample> samples() {
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
    made.inputs[1].low = made.inputs[1].high = loss;
    made.inputs[3] = {{DataType::Float32, {1}}, factor, factor, false};
    return made;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {sample("one metric", 1, 64),
          sample("five metrics", 5, 17),
          sample("nothing valid", 2, 0),
          skipping("an update", 2, 0.5, 1),
          skipping("a skipped update", kInfinity, -1, 1),
          skipping("a loss that is finite, of a skipped update", 2, -1, 1),
          skipping("no update", kInfinity, -1, 0)};
}

}  // namespace

void register_metrics_tally(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Tally",
                .doc =
                    "adds the valid samples and each metric times them to the state; with skips, but for batches whose "
                    "first metric is not finite, and counts updates that were due, and those that were skipped",
                .inputs = {{.name = "state"}, {.name = "metrics", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "updated"}},
                .attributes = {int_spec("skips", 0, "1: the last input is no metric, but ClipFactor's factor")},
                .internal = true,
                .side_effect = true,
                .infer = infer_tally,
                .samples = samples,
                .aliases = {{0, 0}},
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return tally_cpu(r, t); }, 1)});
}

}  // namespace arbalest
