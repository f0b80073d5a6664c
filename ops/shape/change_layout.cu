// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.ChangeLayout.

#include "ops/shape/order/reorder.cuh"

namespace arbalest {

void register_shape_change_layout_cuda(OpRegistry& registry) {
  registry.find("arbalest.ChangeLayout")->cuda = [](const KernelRequest& request) {
    return cuda::make_reorder(request.inputs[0], request.outputs[0].layout);
  };
}

}  // namespace arbalest
