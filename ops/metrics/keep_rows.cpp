// SPDX-License-Identifier: Apache-2.0

// KeepRows: a metric's rows of a batch, put where the samples' place is among those that this device validates.

#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/metrics/operands.h"

namespace arbalest {
namespace {

void infer_keep_rows(InferContext& context) {
  const TensorType& rows = floating_input(context, KeepRowsInput::Rows, {2});
  const TensorType& state = context.input(KeepRowsInput::State);
  int_attribute_from(context.node(), "devices", 1);
  if (state.dtype != rows.dtype || state.shape.size() != 2 || state.shape[1] != rows.shape[1] ||
      state.shape[0] % rows.shape[0] != 0) {
    context.fail(fmt::format("input 'state' is {}; expected whole batches of {}", to_string(state), to_string(rows)));
  }
  context.set_output(0, state);
}

// Batch b of an epoch is the device's batch number b / devices.
std::unique_ptr<Kernel> keep_rows_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = KeepRowsInput;
  const int64_t batch = request.inputs[In::Rows].shape[0], columns = request.inputs[In::Rows].shape[1];
  const int64_t capacity = request.inputs[In::State].shape[0], devices = int_attribute(request.node, "devices");
  return make_kernel([=](const KernelContext& context) {
    const T* rows = input<T>(context, In::Rows);
    const int64_t first = int64_t(context.scalars->position) / (batch * devices) * batch;
    if (first + batch > capacity) return;
    std::copy(rows, rows + valid_samples(context, batch) * columns, output<T>(context, 0) + first * columns);
  });
}

std::vector<Sample> keep_rows_samples() {
  const auto sample = [](std::string name, int64_t capacity, Shape rows, int64_t devices, StepScalars scalars) {
    return Sample{.name = std::move(name),
                  .inputs = {{.type = {DataType::Float32, {capacity, rows[1]}}, .differentiable = false},
                             {.type = {DataType::Float32, rows}, .differentiable = false}},
                  .attributes = {{"devices", devices}},
                  .tolerance = 1e-6,
                  .scalars = scalars,
                  .in_place = true};
  };
  return {sample("first batch", 24, {8, 3}, 1, {.position = 0, .valid = 8}),
          sample("part of the last", 24, {8, 3}, 1, {.position = 16, .valid = 5}),
          sample("of three devices", 200, {100, 11}, 3, {.position = 400, .valid = 99}),
          sample("nothing valid", 4, {4, 1}, 1, {.position = 0, .valid = 0}),
          sample("beyond the end", 4, {4, 2}, 1, {.position = 4, .valid = 4})};
}

}  // namespace

void register_metrics_keep_rows(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "KeepRows",
                .doc = "puts the rows of valid samples at the place of their batch in the state",
                .inputs = {{.name = "state"}, {.name = "rows"}},
                .outputs = {{.name = "updated"}},
                .attributes = {int_spec("devices", 1, "how many take turns with the batches")},
                .internal = true,
                .side_effect = true,
                .infer = infer_keep_rows,
                .samples = keep_rows_samples,
                .aliases = {{0, 0}},
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return keep_rows_cpu(r, t); }, 1)});
}

}  // namespace arbalest
