// SPDX-License-Identifier: Apache-2.0

// AllReduce: the sum, or the mean, of one array a device, on every device.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/replicas/combine.h"

namespace arbalest {
namespace {

void infer_all_reduce(InferContext& context) {
  const TensorType type = replica_input(context);
  flag_attribute(context.node(), "mean");
  if (context.output_count() != context.input_count()) {
    context.fail(
        fmt::format("{} outputs; expected one for each of {} inputs", context.output_count(), context.input_count()));
  }
  for (size_t i = 0; i < context.output_count(); ++i) context.set_output(i, type);
}

template <typename T>
std::unique_ptr<Kernel> all_reduce_kernel(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements();
  const bool mean = int_attribute(request.node, "mean") != 0;
  const std::vector<T> shares(request.inputs.size(), mean ? T(1) / T(request.inputs.size()) : T(1));
  return make_kernel([=](const KernelContext& context) { combine<T>(context, count, shares, shares.size(), 0); });
}

std::unique_ptr<Kernel> all_reduce_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? all_reduce_kernel<double>(request)
                                                      : all_reduce_kernel<float>(request);
}

Cost all_reduce_cost(const Graph& graph, const Node& node) {
  return {double(node.inputs.size()) * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
}

std::vector<Sample> all_reduce_samples() {
  const auto sample = [](std::string name, const TensorType& type, int devices, int64_t mean = 0) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(size_t(devices), {type}),
                  .output_count = devices,
                  .attributes = {{"mean", mean}},
                  .tolerance = 1e-6};
  };
  return {sample("one device", {DataType::Float32, {5}}, 1), sample("two devices", {DataType::Float32, {100003}}, 2),
          sample("mean of three", {DataType::Float32, {1001}}, 3, 1),
          sample("images over eight devices", {DataType::Float32, {2, 3, 5, 7}}, 8),
          sample("17 devices, in double", {DataType::Float64, {1001}}, 17)};
}

}  // namespace

void register_replicas_all_reduce(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "AllReduce",
                .doc = "the sum, or the mean, of one array a device, on every device",
                .inputs = {{.name = "arrays", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "sums", .arity = OperandSpec::Variadic}},
                .attributes = {int_spec("mean", 0, "1: the sum divided by the number of devices")},
                .internal = true,
                .side_effect = true,
                .collective = true,
                .infer = infer_all_reduce,
                .cost = all_reduce_cost,
                .samples = all_reduce_samples,
                .cpu = all_reduce_cpu});
}

}  // namespace arbalest
