// SPDX-License-Identifier: Apache-2.0

// Combine: one linear combination of flat arrays, written to any number of arrays. It averages models, sums the
// gradients of learners, and gives a mean back to every replica.

#include "ops/replicas/combine.h"

#include <fmt/format.h>

#include <array>

#include "ops/cpu.h"

namespace arbalest {
namespace {

// A function of its own: inlined, GCC 12 joins the loop with the one around it and gathers element by element.
template <typename T>
[[gnu::noinline]] void add_scaled(T* sum, T coefficient, const T* term, int64_t count) {
  ARBALEST_INDEPENDENT
  for (int64_t e = 0; e < count; ++e) sum[e] += coefficient * term[e];
}

void infer_combine(InferContext& context) {
  const Node& node = context.node();
  floating_input(context, 0, {1});
  const TensorType type = replica_input(context);
  const size_t terms = context.input_count(), outputs = context.output_count();
  const size_t coefficients = floats_attribute(node, "coefficients").size();
  if (coefficients != terms) {
    context.fail(fmt::format("attribute 'coefficients' has {} numbers; expected one for each of {} inputs",
                             coefficients, terms));
  }
  const auto lowered = size_t(int_attribute_from(node, "lowered", 0));
  if (lowered > outputs) {
    context.fail(fmt::format("attribute 'lowered' is {}; expected at most the {} outputs", lowered, outputs));
  }
  check_array_count(context, terms, "inputs");
  check_array_count(context, outputs - lowered, fmt::format("outputs of type {}", name_of(type.dtype)));
  check_array_count(context, lowered, "outputs of type bfloat16");
  for (size_t i = 0; i < outputs; ++i) {
    context.set_output(i, {i < outputs - lowered ? type.dtype : DataType::Bfloat16, type.shape});
  }
}

template <typename T>
std::unique_ptr<Kernel> combine_kernel(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements();
  const std::vector<double> given = floats_attribute(request.node, "coefficients");
  const std::vector<T> coefficients(given.begin(), given.end());
  const size_t outputs = request.outputs.size(), lowered = size_t(int_attribute(request.node, "lowered"));
  return make_kernel([=](const KernelContext& context) { combine<T>(context, count, coefficients, outputs, lowered); });
}

std::unique_ptr<Kernel> combine_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? combine_kernel<double>(request)
                                                      : combine_kernel<float>(request);
}

Cost combine_cost(const Graph& graph, const Node& node) {
  return {2.0 * double(node.inputs.size()) * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
}

std::vector<Sample> combine_samples() {
  const auto sample = [](std::string name, int64_t count, std::vector<double> coefficients, int outputs,
                         int64_t lowered) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(coefficients.size(), {{DataType::Float32, {count}}}),
                  .output_count = outputs,
                  .attributes = {{"coefficients", coefficients}, {"lowered", lowered}},
                  .tolerance = lowered > 0 ? 4e-3 : 1e-6};
  };
  // (1 − 4α + μ) z − μ z_prev + α Σ w_j with α = 1/4 and μ = 0.9, over four learners.
  const std::vector<double> averaging = {0.9, -0.9, 0.25, 0.25, 0.25, 0.25};
  return {sample("a copy of one element", 1, {1}, 1, 0),
          sample("one array to three", 7, {-0.5}, 3, 0),
          sample("two arrays", 4096, {0.5, 0.5}, 2, 0),
          sample("the average of models", 100003, averaging, 1, 0),
          sample("back to replicas, with bfloat16 copies", 1001, {0.5, 0.5}, 4, 2),
          sample("bfloat16 only", 1024, {2, -1}, 1, 1),
          sample("17 arrays", 1003, std::vector<double>(17, 1.0 / 17), 17, 0)};
}

}  // namespace

void check_array_count(const InferContext& context, size_t count, std::string_view what) {
  if (count <= kMaxReplicaArrays) return;
  context.fail(fmt::format("{} {}; expected at most {}", count, what, kMaxReplicaArrays));
}

const TensorType& replica_input(const InferContext& context) {
  const TensorType& first = floating_input(context, 0);
  expect_input(context, 0, {master_type(first.dtype), first.shape}, "since replicas agree in full precision");
  for (size_t i = 1; i < context.input_count(); ++i) expect_input(context, i, first, "the type of the first input");
  return first;
}

template <typename T>
void combine(const KernelContext& context, int64_t count, const std::vector<T>& coefficients, size_t outputs,
             size_t lowered) {
  // The sums of a block stay in the first cache; all inputs of a block are read before it is written.
  constexpr int64_t kBlock = 1024;
  parallel_for(count, int64_t(coefficients.size()), [&](int64_t begin, int64_t end) {
    std::array<T, kBlock> sum;
    for (int64_t from = begin; from < end; from += kBlock) {
      const int64_t size = std::min(kBlock, end - from);
      std::fill_n(sum.begin(), size, T(0));
      for (size_t i = 0; i < coefficients.size(); ++i) {
        add_scaled(sum.data(), coefficients[i], input<T>(context, i) + from, size);
      }
      for (size_t i = 0; i < outputs - lowered; ++i) std::copy_n(sum.begin(), size, output<T>(context, i) + from);
      for (size_t i = outputs - lowered; i < outputs; ++i) {
        bfloat16* low = output<bfloat16>(context, i) + from;
        for (int64_t e = 0; e < size; ++e) low[e] = bfloat16(float(sum[size_t(e)]));
      }
    }
  });
}

template void combine<float>(const KernelContext&, int64_t, const std::vector<float>&, size_t, size_t);
template void combine<double>(const KernelContext&, int64_t, const std::vector<double>&, size_t, size_t);

void register_replicas_combine(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Combine",
                .doc = "a linear combination of flat arrays, to each of the outputs",
                .inputs = {{.name = "terms", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "sums", .arity = OperandSpec::Variadic}},
                .attributes = {required_spec("coefficients", AttributeKind::Floats, "the factor of each input"),
                               int_spec("lowered", 0, "how many of the last outputs are bfloat16")},
                .internal = true,
                .side_effect = true,
                .infer = infer_combine,
                .cost = combine_cost,
                .samples = combine_samples,
                .cpu = combine_cpu});
}

}  // namespace arbalest
