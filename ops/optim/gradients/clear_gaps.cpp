// SPDX-License-Identifier: Apache-2.0

// ClearGaps: zeros between the gradients of parameters that are updated together. An update is of all elements of a
// range, and no parameter has those.

#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

void infer_clear_gaps(InferContext& context) {
  const TensorType& gradients = floating_input(context, 0, {1});
  const Ints firsts = ints_attribute(context.node(), "firsts"), counts = ints_attribute(context.node(), "counts");
  if (firsts.size() != counts.size()) {
    context.fail(
        fmt::format("attribute 'counts' has {} entries; expected {}, as 'firsts' has", counts.size(), firsts.size()));
  }
  for (size_t i = 0; i < firsts.size(); ++i) {
    const bool inside = firsts[i] >= 0 && counts[i] >= 0 && firsts[i] <= gradients.shape[0] - counts[i];
    if (inside) continue;
    context.fail(fmt::format("gap {} has {} elements from {} on; expected a part of {}", i, counts[i], firsts[i],
                             gradients.shape[0]));
  }
  context.set_output(0, gradients);
}

template <typename T>
std::unique_ptr<Kernel> clear_gaps_kernel(const KernelRequest& request) {
  return make_kernel([firsts = ints_attribute(request.node, "firsts"),
                      counts = ints_attribute(request.node, "counts")](const KernelContext& context) {
    for (size_t i = 0; i < firsts.size(); ++i) std::fill_n(output<T>(context, 0) + firsts[i], counts[i], T(0));
  });
}

std::unique_ptr<Kernel> clear_gaps_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? clear_gaps_kernel<double>(request)
                                                      : clear_gaps_kernel<float>(request);
}

std::vector<Sample> clear_gaps_samples() {
  const auto sample = [](std::string name, int64_t elements, Ints firsts, Ints counts) {
    return Sample{.name = std::move(name),
                  .inputs = {{{DataType::Float32, {elements}}}},
                  .attributes = {{"firsts", std::move(firsts)}, {"counts", std::move(counts)}},
                  .tolerance = 0,
                  .in_place = true};
  };
  Ints firsts, counts;
  for (int64_t i = 0; i < 700; ++i) {
    firsts.push_back(64 * i + i % 40);
    counts.push_back(1 + i % 24);
  }
  return {sample("no gap", 64, {}, {}), sample("after a class's bias", 128, {10}, {54}),
          sample("two, one at the end", 300, {5, 299}, {3, 1}), sample("longer than a block", 5000, {100}, {4000}),
          sample("700", 64 * 700, firsts, counts)};
}

}  // namespace

void register_optim_gradients_clear_gaps(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "ClearGaps",
                .doc = "gradients with zeros in the gaps between those of parameters",
                .inputs = {{.name = "gradients"}},
                .outputs = {{.name = "cleared"}},
                .attributes = {required_spec("firsts", AttributeKind::Ints, "the first element of each gap"),
                               required_spec("counts", AttributeKind::Ints, "how many it has")},
                .internal = true,
                .side_effect = true,
                .infer = infer_clear_gaps,
                .cost = [](const Graph&, const Node&) { return Cost{}; },
                .samples = clear_gaps_samples,
                .aliases = {{0, 0}},
                .cpu = clear_gaps_cpu});
}

}  // namespace arbalest
