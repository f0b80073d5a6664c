// SPDX-License-Identifier: Apache-2.0
#pragma once
// Float tensors in the memory of the current CUDA device.

#include <random>
#include <vector>

#include "ops/cuda/upload.h"

namespace arbalest::test {

inline DeviceBuffer on_device(const std::vector<float>& values) {
  return uploaded(values);
}

inline std::vector<float> noise_values(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(size_t(element_count(shape)));
  for (float& value : values) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return values;
}

inline DeviceBuffer noise(const Shape& shape, uint32_t seed) {
  return on_device(noise_values(shape, seed));
}

inline std::vector<float> content(const DeviceBuffer& buffer, const Shape& shape) {
  std::vector<float> values(size_t(element_count(shape)));
  CUDA_CHECK(cudaMemcpy(values.data(), buffer.data(), values.size() * sizeof(float), cudaMemcpyDeviceToHost));
  return values;
}

// Filled with NaN.
inline DeviceBuffer room_for(const Shape& shape) {
  DeviceBuffer buffer(element_count(shape) * int64_t(sizeof(float)));
  CUDA_CHECK(cudaMemset(buffer.data(), 0xff, size_t(element_count(shape)) * sizeof(float)));
  CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
  return buffer;
}

}  // namespace arbalest::test
