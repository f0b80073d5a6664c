// SPDX-License-Identifier: Apache-2.0

// MergeStatistics: batch norm's running statistics of several replicas as those of their averaged model. With
// statistics m_j, v_j of k replicas: mean = Σ m_j / k, variance = Σ (v_j + m_j²) / k − mean².

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/replicas/combine.h"

namespace arbalest {
namespace {

void infer_merge(InferContext& context) {
  const Node& node = context.node();
  const bool gather = flag_attribute(node, "gather");
  const int64_t replicas = int_attribute_from(node, "replicas", 0);
  floating_input(context, 0, {1});
  const TensorType type = replica_input(context);
  if (type.elements() % 2 != 0) {
    context.fail(fmt::format("{} is {}; expected as many variances as means", input_name(context, 0), to_string(type)));
  }
  const auto arrays = int64_t(context.input_count());
  if (gather) {
    check_array_count(context, context.input_count(), "inputs");
    if (replicas != 0 && replicas != arrays) {
      context.fail(fmt::format("attribute 'replicas' is {}; expected 0, or the {} inputs", replicas, arrays));
    }
  } else {
    if (arrays != 1) context.fail(fmt::format("{} inputs; expected one array of sums with 'gather' = 0", arrays));
    expect_input(context, 0, {DataType::Float64, type.shape}, "since 'gather' is 0");
    if (replicas == 0) context.fail("attribute 'replicas' is 0; expected at least 1 with 'gather' = 0");
  }
  context.set_output(0, {replicas == 0 ? DataType::Float64 : DataType::Float32, type.shape});
}

// Arrays of H means, then H variances; or, of sums, H means and H squares.
template <typename In, typename Out>
std::unique_ptr<Kernel> merge_kernel(const KernelRequest& request) {
  const int64_t channels = request.inputs[0].elements() / 2;
  const size_t arrays = request.inputs.size();
  const bool gather = int_attribute(request.node, "gather") != 0;
  const auto replicas = double(int_attribute(request.node, "replicas"));
  return make_kernel([=](const KernelContext& context) {
    Out* merged = output<Out>(context, 0);
    for (int64_t channel = 0; channel < channels; ++channel) {
      double mean = 0, square = 0;
      for (size_t i = 0; i < arrays; ++i) {
        const In* statistics = input<In>(context, i);
        const double m = statistics[channel], second = statistics[channels + channel];
        mean += m;
        square += gather ? second + m * m : second;
      }
      if (replicas > 0) {
        mean /= replicas;
        square = square / replicas - mean * mean;
        square = square < 0 ? 0 : square;
      }
      merged[channel] = Out(mean);
      merged[channels + channel] = Out(square);
    }
  });
}

std::unique_ptr<Kernel> merge_cpu(const KernelRequest& request) {
  const bool wide_out = request.outputs[0].dtype == DataType::Float64;
  if (request.inputs[0].dtype == DataType::Float64) {
    return wide_out ? merge_kernel<double, double>(request) : merge_kernel<double, float>(request);
  }
  return wide_out ? merge_kernel<float, double>(request) : merge_kernel<float, float>(request);
}

Cost merge_cost(const Graph& graph, const Node& node) {
  return {2.0 * double(node.inputs.size()) * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
}

std::vector<Sample> merge_statistics_samples() {
  const auto gather = [](std::string name, int64_t channels, int64_t arrays, bool finish) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(size_t(arrays), {{DataType::Float32, {2 * channels}}, 0, 2}),
                  .attributes = {{"replicas", finish ? arrays : int64_t{0}}},
                  .tolerance = 1e-6};
  };
  // Sums over three replicas; variances that rounding took below 0 are among them.
  const Sample finish{.name = "sums of three",
                      .inputs = {{{DataType::Float64, {2 * 1003}}, -1, 3}},
                      .attributes = {{"gather", int64_t{0}}, {"replicas", int64_t{3}}},
                      .tolerance = 1e-6};
  return {gather("one replica", 1, 1, true),     gather("two replicas", 33, 2, true),
          gather("17 replicas", 2048, 17, true), gather("sums over two", 1003, 2, false),
          gather("sums over 17", 64, 17, false), finish};
}

}  // namespace

void register_replicas_merge_statistics(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "MergeStatistics",
                .doc = "running means, then running variances, of several replicas as those of their averaged model",
                .inputs = {{.name = "statistics", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "merged"}},
                .attributes = {int_spec("gather", 1, "1: the inputs are replicas' statistics; 0: one array of sums"),
                               int_spec("replicas", 0, "0: the output is sums; else their statistics, over so many")},
                .internal = true,
                .side_effect = true,
                .infer = infer_merge,
                .cost = merge_cost,
                .samples = merge_statistics_samples,
                .cpu = merge_cpu});
}

}  // namespace arbalest
