// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors in bfloat16 in the memory of the current CUDA device, and how far results of them may be off.

#include <doctest/doctest.h>

#include <cmath>

#include "graph/types.h"
#include "tests/ops/device_tensor.h"

namespace arbalest::test {

// The same numbers in both types.
struct LoweredTensor {
  DeviceBuffer lowered, exact;
};
// Around `mean`, by up to 1 − |mean| / 16.
inline LoweredTensor lowered_noise(const Shape& shape, uint32_t seed, float mean = 0) {
  std::vector<float> values = noise_values(shape, seed);
  std::vector<bfloat16> lowered;
  for (float& value : values) value = float(lowered.emplace_back(mean + value * (1 - std::abs(mean) / 16)));
  return {uploaded(lowered), on_device(values)};
}

inline std::vector<float> content(const DeviceBuffer& buffer, const Shape& shape, DataType type) {
  if (type == DataType::Float32) return content(buffer, shape);
  std::vector<bfloat16> values(size_t(element_count(shape)));
  CUDA_CHECK(cudaMemcpy(values.data(), buffer.data(), values.size() * sizeof(bfloat16), cudaMemcpyDeviceToHost));
  return {values.begin(), values.end()};
}

// The largest difference, as a share of what it is allowed to be. That is the rounding of the result, and of sums of so
// many pixels (gradients of filters), which plain loops and kernels of few blocks add up one by one.
inline double worst_share(const std::vector<float>& found, const std::vector<float>& expected, int64_t pixels) {
  REQUIRE(found.size() == expected.size());
  const double rounding = pixels > 1 ? 1e-5 : 1.0 / 256;
  const double of_sums = pixels > 1 ? 2.5e-5 * std::sqrt(double(pixels)) : 2e-4;
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double allowed = rounding * std::abs(double(expected[i])) + of_sums;
    const double share = std::abs(double(found[i]) - double(expected[i])) / allowed;
    worst = share <= worst ? worst : share;  // NaN too
  }
  return worst;
}

}  // namespace arbalest::test
