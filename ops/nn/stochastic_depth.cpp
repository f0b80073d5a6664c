// SPDX-License-Identifier: Apache-2.0

// StochasticDepth: in training, whole samples are set to 0 at random, which leaves of a residual block its shortcut
// (Huang et al., "Deep networks with stochastic depth", ECCV 2016). Backward draws the same numbers.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/nn/dropout.h"

namespace arbalest {
namespace {

void infer_stochastic_depth(InferContext& context) {
  const TensorType& x = floating_input(context, 0);
  if (x.shape.empty()) context.fail("input 'X' is a scalar; expected samples along the first axis");
  const double ratio = float_attribute(context.node(), "ratio");
  if (!(ratio >= 0 && ratio < 1)) context.fail(fmt::format("attribute 'ratio' is {}; expected 0 to below 1", ratio));
  context.set_output(0, x);
}

// The first axis is the outermost in memory in every layout.
std::unique_ptr<Kernel> stochastic_depth_cpu(const KernelRequest& request, const std::string& name, auto element) {
  using T = decltype(element);
  const int64_t samples = request.inputs[0].shape[0];
  const int64_t length = samples == 0 ? 0 : request.inputs[0].elements() / samples;
  const Dropping dropping(request.node, name, samples);
  return make_kernel([=](const KernelContext& c) {
    parallel_for(samples, length, [&](int64_t begin, int64_t end) {
      for (int64_t sample = begin; sample < end; ++sample) {
        const bool keep = dropping.keeps(dropping.draw_of(*c.scalars, sample / 4), int(sample % 4));
        const T* x = input<T>(c, 0) + sample * length;
        T* y = output<T>(c, 0) + sample * length;
        for (int64_t i = 0; i < length; ++i) y[i] = keep ? narrow<T>(widen(x[i]) * Wide<T>(dropping.scale)) : T(0);
      }
    });
  });
}

void keep_all_branches(Graph& graph, NodeId id) {
  graph.nodes[id].op = &graph.op("Identity");
  graph.nodes[id].attributes = {};
}

std::vector<Sample> stochastic_depth_samples(const Attributes& others) {
  return dropping_samples({Shape{1}, Shape{7, 5}, Shape{6, 7, 5, 3}, Shape{5, 9, 64}, Shape{9, 16, 17, 16}}, {0.0, 0.4},
                          others);
}

}  // namespace

void register_nn_stochastic_depth(OpRegistry& registry) {
  register_dropping(
      registry,
      {.domain = "arbalest",
       .name = "StochasticDepth",
       .doc = "in training: samples are 0 at random, the others X / (1 − ratio); else X",
       .inputs = {{.name = "X", .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}},
       .attributes =
           {float_spec("ratio", 0.0, "of the samples that become 0"),
            int_spec("seed", 0,
                     "another one draws other samples; the run's seed, the node's name, epoch and batch count too")},
       .infer = infer_stochastic_depth,
       .expands = [](const InferContext& c) { return float_attribute(c.node(), "ratio") == 0; },
       .for_inference = keep_all_branches,
       .samples = [] { return stochastic_depth_samples({}); },
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return stochastic_depth_cpu(r, r.node.name, t); })},
      [] {
        return stochastic_depth_samples({{"node", "dropped"}});
      },
      floating_kernel(
          [](const KernelRequest& r, auto t) { return stochastic_depth_cpu(r, string_attribute(r.node, "node"), t); }));
}

}  // namespace arbalest
