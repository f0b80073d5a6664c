// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Flatten and arbalest.Unflatten: what is channels-last in memory comes into logical order and back.

#include "ops/shape/order/reorder.cuh"

namespace arbalest {

void register_shape_flatten_cuda(OpRegistry& registry) {
  for (const char* name : {"Flatten", "arbalest.FlattenInPlace"}) {
    registry.find(name)->cuda = [](const KernelRequest& request) {
      return cuda::make_reorder(request.inputs[0], Layout::RowMajor);
    };
  }
  for (const char* name : {"arbalest.Unflatten", "arbalest.UnflattenInPlace"}) {
    registry.find(name)->cuda = [](const KernelRequest& request) {
      const TensorType& x = request.outputs[0];
      return cuda::make_reorder({x.dtype, x.shape}, x.layout);
    };
  }
}

}  // namespace arbalest
