// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of Identity, StopGradient, Reshape, Squeeze and Unsqueeze: nothing if the output is the input's memory,
// else a copy.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

void register_shape_reshape_cuda(OpRegistry& registry) {
  for (const char* name : {"Identity", "arbalest.StopGradient", "Reshape", "Squeeze", "Unsqueeze"}) {
    registry.find(name)->cuda = [](const KernelRequest& request) {
      const int64_t bytes = request.outputs[0].bytes();
      return make_kernel([bytes](const KernelContext& c) {
        if (bytes == 0 || c.outputs[0] == c.inputs[0]) return;
        CUDA_CHECK(cudaMemcpyAsync(c.outputs[0], c.inputs[0], size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(c)));
      });
    };
  }
}

}  // namespace arbalest
