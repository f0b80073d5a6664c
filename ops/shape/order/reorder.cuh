// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernel between the memory layouts of one tensor: a transposition for each image, a copy if the orders agree.

#include "ops/shape/order/reorder.h"
#include "ops/shape/order/transposition.cuh"

namespace arbalest::cuda {

// Brings input 0, of type `type`, into `layout`.
inline std::unique_ptr<Kernel> make_reorder(const TensorType& type, Layout layout) {
  const Reordering order(type, layout);
  const int64_t bytes = type.bytes();
  if (bytes == 0 || order.copies()) {
    return make_kernel([bytes](const KernelContext& c) {
      if (bytes == 0 || c.outputs[0] == c.inputs[0]) return;
      CUDA_CHECK(cudaMemcpyAsync(c.outputs[0], c.inputs[0], size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(c)));
    });
  }
  return make_transposition(Transposition(order.batch, order.rows, order.columns), type.dtype);
}

}  // namespace arbalest::cuda
