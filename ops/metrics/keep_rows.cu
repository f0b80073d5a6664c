// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.KeepRows.

#include "ops/cuda/cuda_math.cuh"
#include "ops/metrics/operands.h"

namespace arbalest {

using namespace cuda;

namespace {

// rows: (batch, columns) of which the valid ones go to state: (capacity, columns). Batch b of an epoch is the device's
// batch number b / devices.
__global__ void __launch_bounds__(kThreads)
    keep_rows_kernel(int64_t batch, int64_t columns, int64_t capacity, int64_t devices, const StepScalars* scalars,
                     const float* rows, float* state) {
  const int64_t first = int64_t(scalars->position) / (batch * devices) * batch;
  if (first + batch > capacity) return;
  const int64_t count = max(int64_t{0}, min(int64_t(scalars->valid), batch)) * columns;
  float* to = state + first * columns;
  for (int64_t i = thread_index(); i < count; i += thread_count()) to[i] = rows[i];
}

}  // namespace

void register_metrics_keep_rows_cuda(OpRegistry& registry) {
  using In = KeepRowsInput;
  registry.find("arbalest.KeepRows")->cuda = [](const KernelRequest& request) {
    require_float(request, In::Rows, "float rows");
    const int64_t batch = request.inputs[In::Rows].shape[0], columns = request.inputs[In::Rows].shape[1];
    const int64_t capacity = request.inputs[In::State].shape[0], devices = int_attribute(request.node, "devices");
    const int multiprocessors = multiprocessors_of(request);
    return make_kernel([=](const KernelContext& c) {
      if (batch * columns == 0) return;
      keep_rows_kernel<<<blocks_for(batch * columns, multiprocessors), kThreads, 0, stream_of(c)>>>(
          batch, columns, capacity, devices, c.scalars, input<float>(c, In::Rows), output<float>(c, 0));
      check_launch("keep rows");
    });
  };
}

}  // namespace arbalest
