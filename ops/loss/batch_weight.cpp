// SPDX-License-Identifier: Apache-2.0

// BatchWeight: how much a batch counts if a mean is over several batches.

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/loss/operands.h"

namespace arbalest {
namespace {

void infer_weight(InferContext& context) {
  const DataType dtype = floating_input(context, BatchWeightInput::Weight).dtype;
  for (size_t i = 0; i < context.input_count(); ++i) {
    if (context.has_input(i)) expect_input(context, i, {master_type(dtype), {}}, "a scalar");
  }
  if (!(float_attribute(context.node(), "nominal") > 0)) context.fail("attribute 'nominal' is not above 0");
  context.set_output(BatchWeightOutput::Share, {dtype, {}});
  context.set_output(BatchWeightOutput::Seed, {dtype, {}});
}

std::unique_ptr<Kernel> weight_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  using In = BatchWeightInput;
  const W nominal = W(float_attribute(request.node, "nominal"));
  const bool guarded = request.has_input(In::Loss);
  return make_kernel([=](const KernelContext& context) {
    const bool counts = !guarded || std::isfinite(widen(*input<T>(context, In::Loss)));
    const W share = counts ? widen(*input<T>(context, In::Weight)) / nominal : std::numeric_limits<W>::quiet_NaN();
    *output<T>(context, BatchWeightOutput::Share) = narrow<T>(share < 0 ? W(0) : share);
    *output<T>(context, BatchWeightOutput::Seed) = narrow<T>(std::abs(share));
  });
}

std::vector<Sample> batch_weight_samples() {
  const auto sample = [](std::string name, double nominal, size_t inputs) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(inputs, {{DataType::Float32, {}}, 0, 100}),
                  .output_count = 2,
                  .attributes = {{"nominal", nominal}},
                  .tolerance = 1e-6};
  };
  Sample weightless = sample("of a batch that weighs nothing", 8, 1);
  weightless.inputs[0].low = weightless.inputs[0].high = -5;
  return {sample("of a batch", 49, 1), sample("with its loss", 8, 2), weightless};
}

}  // namespace

void register_loss_batch_weight(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "BatchWeight",
                .doc = "the weight of a batch, which its loss is a mean over, by that of a batch whose samples weigh 1 "
                       "each, and how much its gradients count, which differs where the weight is below 0; with the "
                       "loss, NaN where that is not finite",
                .inputs = {{.name = "weight"}, {.name = "loss", .arity = OperandSpec::Optional}},
                .outputs = {{.name = "share"}, {.name = "seed"}},
                .attributes = {required_spec("nominal", AttributeKind::Float, "the samples of a batch")},
                .internal = true,
                .infer = infer_weight,
                .samples = batch_weight_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return weight_cpu(r, t); })});
}

}  // namespace arbalest
