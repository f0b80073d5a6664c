// Tally: running sums of metrics over batches, weighted by the samples that counted.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_tally(InferContext& context) {
  const int64_t metrics = int64_t(context.input_count()) - 1;
  expect_input(context, 0, {DataType::Float64, {metrics + 1}},
               fmt::format("one entry for the samples and one for each of {} metrics", metrics));
  for (size_t i = 1; i < context.input_count(); ++i) {
    expect_input(context, i, {floating_input(context, i).dtype, {}}, "a scalar");
  }
  context.set_output(0, context.input(0));
}

std::unique_ptr<Kernel> tally_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const size_t metrics = request.inputs.size() - 1;
  return make_kernel([metrics](const KernelContext& context) {
    const double* before = input<double>(context, 0);
    double* after = output<double>(context, 0);
    const double samples = context.scalars->valid;
    after[0] = before[0] + samples;
    for (size_t i = 1; i <= metrics; ++i) {
      // A batch of padding only counts nothing, whatever its metrics hold.
      after[i] = before[i] + (samples > 0 ? samples * double(*input<T>(context, i)) : 0.0);
    }
  });
}

std::vector<Sample> samples() {
  const Sample::Input scalar{{DataType::Float32, {}}, -1, 1, false};
  const auto sample = [&](std::string name, int64_t metrics, int32_t valid) {
    std::vector<Sample::Input> inputs(size_t(metrics) + 1, scalar);
    inputs[0] = {{DataType::Float64, {metrics + 1}}, 0, 100, false};
    return Sample{.name = std::move(name), .inputs = inputs, .tolerance = 1e-6, .scalars = {.valid = valid}};
  };
  return {sample("one metric", 1, 64), sample("five metrics", 5, 17), sample("nothing valid", 2, 0)};
}

}  // namespace

void register_metrics_tally(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Tally",
                .doc = "adds the valid samples and each metric times them to the state",
                .inputs = {{.name = "state"}, {.name = "metrics", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "updated"}},
                .internal = true,
                .side_effect = true,
                .infer = infer_tally,
                .samples = samples,
                .aliases = {{0, 0}},
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return tally_cpu(r, t); }, 1)});
}

}  // namespace arbalest
