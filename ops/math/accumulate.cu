// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Accumulate.

#include "ops/cuda/cuda_math.cuh"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

template <int W>
__device__ void accumulate_pack(float scale, bool first, const float* gradients, const float* sum, float* new_sum) {
  const Pack<float, W> gradient = load<W>(gradients);
  Pack<float, W> total = {};
  if (!first) total = load<W>(sum);
#pragma unroll
  for (int k = 0; k < W; ++k) total.element[k] += scale * gradient.element[k];
  store(new_sum, total);
}

// (P) each. new_sum may be the memory of sum, which is not read if nothing was accumulated.
template <int W>
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(int64_t count, float scale, const StepScalars* scalars, const float* gradients, const float* sum,
                      float* new_sum) {
  const bool first = scalars->accumulated == 0;
  const int64_t packs = count / W;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    accumulate_pack<W>(scale, first, gradients + i * W, sum + i * W, new_sum + i * W);
  }
  const int64_t rest = packs * W + thread_index();
  if (rest < count) accumulate_pack<1>(scale, first, gradients + rest, sum + rest, new_sum + rest);
}

}  // namespace

void register_math_accumulate_cuda(OpRegistry& registry) {
  using In = AccumulateInput;
  registry.find("arbalest.Accumulate")->cuda = [](const KernelRequest& request) {
    require_float(request, In::Gradients, "float gradients");
    const int64_t count = request.inputs[In::Gradients].elements();
    const int multiprocessors = multiprocessors_of(request);
    const auto scale = float(float_attribute(request.node, "scale"));
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const float *gradients = input<float>(c, In::Gradients), *sum = input<float>(c, In::Sum);
      float* new_sum = output<float>(c, 0);
      if (aligned(gradients) && aligned(sum) && aligned(new_sum)) {
        accumulate_kernel<4><<<blocks_for((count + 3) / 4, multiprocessors), kThreads, 0, stream_of(c)>>>(
            count, scale, c.scalars, gradients, sum, new_sum);
      } else {
        accumulate_kernel<1><<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
            count, scale, c.scalars, gradients, sum, new_sum);
      }
      check_launch("accumulate");
    });
  };
}

}  // namespace arbalest
