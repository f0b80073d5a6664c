// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.BatchWeight.

#include "ops/cuda/cuda_math.cuh"
#include "ops/loss/operands.h"

namespace arbalest {

using namespace cuda;

namespace {

// One thread. `loss` may be null.
__global__ void batch_weight_kernel(float nominal, const float* weight, const float* loss, float* share, float* seed) {
  const float own = loss == nullptr || isfinite(*loss) ? *weight / nominal : NAN;
  *share = own < 0 ? 0.0f : own;
  *seed = fabsf(own);
}

}  // namespace

void register_loss_batch_weight_cuda(OpRegistry& registry) {
  using In = BatchWeightInput;
  registry.find("arbalest.BatchWeight")->cuda = [](const KernelRequest& request) {
    require_float(request, In::Weight, "a float weight");
    const auto nominal = float(float_attribute(request.node, "nominal"));
    const bool guarded = request.has_input(In::Loss);
    return make_kernel([=](const KernelContext& c) {
      batch_weight_kernel<<<1, 1, 0, stream_of(c)>>>(
          nominal, input<float>(c, In::Weight), guarded ? input<float>(c, In::Loss) : nullptr,
          output<float>(c, BatchWeightOutput::Share), output<float>(c, BatchWeightOutput::Seed));
      check_launch("batch weight");
    });
  };
}

}  // namespace arbalest
