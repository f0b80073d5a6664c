// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.BatchWeight.

#include "ops/cuda/cuda_math.cuh"

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
  registry.find("arbalest.BatchWeight")->cuda = [](const KernelRequest& request) {
    if (request.inputs[0].dtype != DataType::Float32) fail_type(request, request.inputs[0].dtype, "a float weight");
    const auto nominal = float(float_attribute(request.node, "nominal"));
    const bool guarded = request.has_input(1);
    return make_kernel([=](const KernelContext& c) {
      batch_weight_kernel<<<1, 1, 0, stream_of(c)>>>(nominal, input<float>(c, 0),
                                                     guarded ? input<float>(c, 1) : nullptr, output<float>(c, 0),
                                                     output<float>(c, 1));
      check_launch("batch weight");
    });
  };
}

}  // namespace arbalest
