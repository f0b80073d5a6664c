// SPDX-License-Identifier: Apache-2.0

// KeepStatistics and RestoreStatistics: running statistics from before an update that is skipped.

#include <algorithm>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/optim/skip.h"

namespace arbalest {
namespace {

void infer_keep(InferContext& context) {
  using In = SkipInput;
  const TensorType statistics = floating_input(context, In::Statistics, {1});
  expect_input(context, In::Kept, statistics, "the type of 'statistics'");
  if (context.input_count() > 2) expect_input(context, In::Factor, {statistics.dtype, {1}}, "one factor");
  context.set_output(0, statistics);
}

template <typename T>
std::unique_ptr<Kernel> keep_kernel(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements();
  return make_kernel([=](const KernelContext& context) {
    if (context.scalars->accumulated == 0) std::copy_n(input<T>(context, 0), count, output<T>(context, 0));
  });
}

template <typename T>
std::unique_ptr<Kernel> restore_kernel(const KernelRequest& request) {
  using In = SkipInput;
  const int64_t count = request.inputs[In::Statistics].elements();
  return make_kernel([=](const KernelContext& context) {
    const bool skipped = context.scalars->update != 0 && *input<T>(context, In::Factor) < 0;
    if (skipped) std::copy_n(input<T>(context, In::Kept), count, output<T>(context, 0));
  });
}

std::unique_ptr<Kernel> keep_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? keep_kernel<double>(request) : keep_kernel<float>(request);
}

std::unique_ptr<Kernel> restore_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? restore_kernel<double>(request)
                                                      : restore_kernel<float>(request);
}

std::vector<Sample> keep_samples() {
  const auto sample = [](std::string name, int32_t accumulated) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(2, {{DataType::Float32, {1003}}}),
                  .tolerance = 0,
                  .scalars = {.accumulated = accumulated},
                  .in_place = accumulated > 0};
  };
  return {sample("the first batch of an update", 0), sample("a later batch", 1)};
}

std::vector<Sample> restore_samples() {
  const auto sample = [](std::string name, double factor, int32_t update) {
    Sample made{.name = std::move(name),
                .inputs = std::vector<Sample::Input>(3, {{DataType::Float32, {1003}}}),
                .tolerance = 0,
                .scalars = {.update = update},
                .in_place = factor > 0 || update == 0};
    made.inputs[SkipInput::Factor] = {{DataType::Float32, {1}}, factor, factor};
    return made;
  };
  return {sample("a skipped update", -1, 1), sample("an update", 0.5, 1), sample("no update", -1, 0)};
}

}  // namespace

void register_optim_skip(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "KeepStatistics",
                .doc = "a copy of the running statistics from before the first batch of an update",
                .inputs = {{.name = "statistics"}, {.name = "kept"}},
                .outputs = {{.name = "new_kept"}},
                .internal = true,
                .side_effect = true,
                .infer = infer_keep,
                .cost = elementwise_cost(0),
                .samples = keep_samples,
                .aliases = {{0, 1}},
                .cpu = keep_cpu});
  registry.add({.domain = "arbalest",
                .name = "RestoreStatistics",
                .doc = "the running statistics, or, where the factor of gradients is below 0, those that were kept",
                .inputs = {{.name = "statistics"}, {.name = "kept"}, {.name = "factor"}},
                .outputs = {{.name = "restored"}},
                .internal = true,
                .side_effect = true,
                .infer = infer_keep,
                .cost = elementwise_cost(0),
                .samples = restore_samples,
                .aliases = {{0, 0}},
                .cpu = restore_cpu});
}

}  // namespace arbalest
