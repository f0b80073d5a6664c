// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies to the memory of the device in use, which kernels of any stream may read once these functions have returned.
// cudaMemcpy by itself may return while memory that is not pinned is still on its way.
// https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html

#include <vector>

#include "ops/cuda/cuda_context.h"

namespace arbalest {

inline void upload(void* to, const void* from, size_t bytes) {
  // Not the whole device, which may be busy for other runs, nor a context's stream, which one of them may record.
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
}

template <typename T>
DeviceBuffer uploaded(const std::vector<T>& list) {
  const size_t bytes = list.size() * sizeof(T);
  DeviceBuffer buffer{int64_t(bytes)};
  if (bytes > 0) upload(buffer.data(), list.data(), bytes);
  return buffer;
}

}  // namespace arbalest
