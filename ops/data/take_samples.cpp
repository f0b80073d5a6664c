// SPDX-License-Identifier: Apache-2.0

// TakeSamples: makes a batch of samples that lie in the device's memory. The batch's pinned slot, which a fill has
// written, holds its StepScalars and after them the indices of its samples.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr int64_t kScalarWords = sizeof(StepScalars) / sizeof(int64_t);

void infer_take(InferContext& context) {
  const TensorType& slot = context.input(0);
  if (slot.dtype != DataType::Int64 || slot.shape.size() != 1 || slot.shape[0] <= kScalarWords) {
    context.fail(
        fmt::format("'slot' is {}; expected int64[{} + the samples of a batch]", to_string(slot), kScalarWords));
  }
  if (context.output_count() != context.input_count()) {
    context.fail(fmt::format("{} outputs for {} fields; expected the scalars and each field", context.output_count(),
                             context.input_count() - 1));
  }
  context.set_output(0, {DataType::Int64, {kScalarWords}});
  for (size_t field = 1; field < context.input_count(); ++field) {
    const TensorType& samples = context.input(field);
    if (samples.dtype != DataType::Uint8 || samples.shape.size() != 2) {
      context.fail(fmt::format("field {} is {}; expected uint8[samples, bytes of one]", field, to_string(samples)));
    }
    context.set_output(field, {DataType::Uint8, {slot.shape[0] - kScalarWords, samples.shape[1]}});
  }
}

std::unique_ptr<Kernel> take_samples_cpu(const KernelRequest& request) {
  const int64_t batch = request.inputs[0].shape[0] - kScalarWords;
  std::vector<int64_t> strides;  // by input
  for (const TensorType& type : request.inputs) strides.push_back(type.shape.back());
  return make_kernel([=](const KernelContext& context) {
    const int64_t* slot = input<int64_t>(context, 0);
    std::memcpy(context.outputs[0], slot, sizeof(StepScalars));
    for (size_t field = 1; field < strides.size(); ++field) {
      const int64_t stride = strides[field];
      const std::byte* from = input<std::byte>(context, field);
      std::byte* to = output<std::byte>(context, field);
      parallel_for(batch, stride, [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          std::memcpy(to + n * stride, from + slot[kScalarWords + n] * stride, size_t(stride));
        }
      });
    }
  });
}

Cost take_cost(const Graph& graph, const Node& node) {
  double bytes = 0;
  for (size_t field = 1; field < node.outputs.size(); ++field) {
    bytes += 2 * double(output_type(graph, node, field).bytes());
  }
  return {0, bytes};
}

std::vector<Sample> take_samples() {
  const auto sample = [](std::string name, int64_t samples, int64_t batch, const std::vector<int64_t>& strides) {
    Sample made{.name = std::move(name), .output_count = int(1 + strides.size()), .tolerance = 0};
    made.inputs.push_back({.type = {DataType::Int64, {kScalarWords + batch}}, .low = 0, .high = double(samples - 1)});
    for (const int64_t stride : strides) {
      made.inputs.push_back({.type = {DataType::Uint8, {samples, stride}}, .low = 0, .high = 255});
    }
    return made;
  };
  return {sample("one byte of one sample", 1, 1, {1}),
          sample("digits and their labels", 50, 16, {28 * 28, 4}),
          sample("rows of every alignment", 9, 33, {3, 6, 20, 24, 40, 48}),
          sample("photos", 12, 20, {64 * 64 * 3, 4}),
          sample("rows longer than a block reads at once", 3, 5, {100'003, 200'000}),
          sample("more fields than a launch takes", 7, 4, {16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})};
}

}  // namespace

void register_data_take_samples(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "TakeSamples",
                .doc = "a batch of samples that lie in the device's memory, by their indices",
                .inputs = {{.name = "slot"}, {.name = "samples", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "scalars"}, {.name = "fields", .arity = OperandSpec::Variadic}},
                .internal = true,
                .side_effect = true,
                .infer = infer_take,
                .cost = take_cost,
                .samples = take_samples,
                .cpu = take_samples_cpu});
}

}  // namespace arbalest
