// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.KeepStatistics and arbalest.RestoreStatistics.

#include "ops/cuda/cuda_math.cuh"
#include "ops/optim/skip.h"

namespace arbalest {

using namespace cuda;

namespace {

__device__ void copy(int64_t count, const float* from, float* to) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) to[i] = from[i];
}

// (S) each. `kept` stays as it is except for the first batch of an update.
__global__ void __launch_bounds__(kThreads)
    keep_kernel(int64_t count, const StepScalars* scalars, const float* statistics, float* kept) {
  if (scalars->accumulated == 0) copy(count, statistics, kept);
}

// (S) each, factor (1). Restores `statistics` if the update is skipped; else they stay as they are.
__global__ void __launch_bounds__(kThreads) restore_kernel(int64_t count, const StepScalars* scalars, const float* kept,
                                                           const float* factor, float* statistics) {
  if (scalars->update != 0 && *factor < 0.0f) copy(count, kept, statistics);
}

void check_type(const KernelRequest& request) {
  require_float(request, 0, "float statistics");
}

}  // namespace

void register_optim_skip_cuda(OpRegistry& registry) {
  using In = SkipInput;
  registry.find("arbalest.KeepStatistics")->cuda = [](const KernelRequest& request) {
    check_type(request);
    const int64_t count = request.inputs[In::Statistics].elements();
    const unsigned blocks = blocks_for(count, multiprocessors_of(request));
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      keep_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(count, c.scalars, input<float>(c, In::Statistics),
                                                         output<float>(c, 0));
      check_launch("kept statistics");
    });
  };
  registry.find("arbalest.RestoreStatistics")->cuda = [](const KernelRequest& request) {
    check_type(request);
    const int64_t count = request.inputs[In::Statistics].elements();
    const unsigned blocks = blocks_for(count, multiprocessors_of(request));
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      restore_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(count, c.scalars, input<float>(c, In::Kept),
                                                            input<float>(c, In::Factor), output<float>(c, 0));
      check_launch("restored statistics");
    });
  };
}

}  // namespace arbalest
