// SPDX-License-Identifier: Apache-2.0

// ClipFactor: what gradients are multiplied by so that they are a mean whose norm over all parameters stays within a
// bound.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr int64_t kClipBlock =
    4096;  // elements whose squares are added up one by one; the same for any number of threads

void infer_clip(InferContext& context) {
  const TensorType& gradients = floating_input(context, 0, {1});
  expect_input(context, 0, {master_type(gradients.dtype), gradients.shape}, "since norms are in full precision");
  const int64_t weight = int_attribute_from(context.node(), "weight", -1);
  if (weight >= gradients.elements()) {
    context.fail(
        fmt::format("attribute 'weight' is {}; expected one of the {} gradients", weight, gradients.elements()));
  }
  const double norm = float_attribute(context.node(), "norm");
  if (!(norm > 0 || (norm == 0 && (flag_attribute(context.node(), "skip") || weight >= 0)))) {
    context.fail("attribute 'norm' is not above 0");
  }
  context.set_output(0, {gradients.dtype, {1}});
}

template <typename T>
std::unique_ptr<Kernel> clip_kernel(const KernelRequest& request) {
  const int64_t weight = int_attribute(request.node, "weight");
  const double bound = float_attribute(request.node, "norm");
  const bool skips = flag_attribute(request.node, "skip");
  // Without a bound nothing has to be known of the norm.
  const int64_t count = bound > 0 || skips ? (weight >= 0 ? weight : request.inputs[0].elements()) : 0;
  const int64_t blocks = (count + kClipBlock - 1) / kClipBlock;
  auto run = [=](const KernelContext& context) {
    if (context.scalars->update == 0) return;
    const T* gradients = input<T>(context, 0);
    auto* sums = static_cast<double*>(context.workspace);
    parallel_for(blocks, kClipBlock, [=](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const T* from = gradients + block * kClipBlock;
        sums[block] = sum_in_lanes<double>(std::min(kClipBlock, count - block * kClipBlock),
                                           [from](int64_t i) { return double(from[i]) * double(from[i]); });
      }
    });
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
    // Gradients of a batch that weighs nothing are zeros.
    const double share = weight < 0 ? 1 : gradients[weight] == T(0) ? 0 : 1 / double(gradients[weight]);
    const double norm = std::sqrt(sum);
    T& factor = *output<T>(context, 0);
    factor = bound > 0 && norm * share > bound ? T(bound / norm) : T(share);
    if (!std::isfinite(norm)) factor = skips ? T(-1) : T(share);
  };
  return make_kernel(run, blocks * int64_t(sizeof(double)));
}

std::unique_ptr<Kernel> clip_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? clip_kernel<double>(request) : clip_kernel<float>(request);
}

std::vector<Sample> clip_samples() {
  const auto sample = [](std::string name, int64_t count, double norm) {
    return Sample{.name = std::move(name),
                  .inputs = {{{DataType::Float32, {count}}}},
                  .attributes = {{"norm", norm}},
                  .tolerance = 1e-6};
  };
  Sample huge = sample("squares beyond single precision", 1003, 1.0);
  huge.inputs[0].low = 1e30;
  huge.inputs[0].high = 1e31;
  Sample skipped = sample("a norm that is not finite", 1003, 1.0), unbound = sample("no bound", 1003, 0.0);
  skipped.inputs[0].low = skipped.inputs[0].high = std::numeric_limits<double>::infinity();
  for (Sample* each : {&skipped, &unbound}) each->attributes.set("skip", int64_t{1});
  // The last element is the weight; what follows a norm is not part of it.
  const auto weighing = [&](std::string name, int64_t count, double norm, double low, double high, bool skips) {
    Sample made = sample(std::move(name), count + 64, norm);
    made.inputs[0].low = low;
    made.inputs[0].high = high;
    made.attributes.set("weight", count);
    if (skips) made.attributes.set("skip", int64_t{1});
    return made;
  };
  return {skipped,
          unbound,
          weighing("a weight", 1001, 0, 0.5, 2, false),
          weighing("a weight of 0", 128, 0, 0, 0, false),
          weighing("a weight, within the bound", 1001, 1e4, 0.5, 2, false),
          weighing("a weight, above the bound", 4096, 0.5, 0.5, 2, false),
          weighing("a weight, skipping", 1003, 0, 0.5, 2, true),
          sample("one element", 1, 1e-3),
          sample("within the bound", 1001, 1e3),
          sample("above the bound", 1001, 0.5),
          sample("aligned", 4096, 0.1),
          sample("a large model", 1000003, 10),
          huge};
}

}  // namespace

void register_optim_gradients_clip(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "ClipFactor",
       .doc = "the bound over the norm of all gradients where that is greater, else 1; where it is not finite 1, or, "
              "with skip, -1, which stands for no update; with weight, of gradients over that one of them, which is "
              "after the others",
       .inputs = {{.name = "gradients"}},
       .outputs = {{.name = "factor"}},
       .attributes = {required_spec("norm", AttributeKind::Float, "the bound; 0, with skip or weight: none"),
                      int_spec("skip", 0, "1: there is no update where the norm is not finite"),
                      int_spec("weight", -1, "the element that holds what gradients are to be divided by; -1: none")},
       .internal = true,
       .infer = infer_clip,
       .cost =
           [](const Graph& graph, const Node& node) {
             return Cost{2 * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
           },
       .samples = clip_samples,
       .cpu = clip_cpu});
}

}  // namespace arbalest
