// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/dependent_launch.cuh"

#include <array>
#include <atomic>

namespace arbalest::cuda {
namespace {

__global__ void any_kernel() {}

enum Known : int8_t { Unknown, No, Yes };

Known ask() {
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, any_kernel) != cudaSuccess) return No;  // launches say why
  return attributes.ptxVersion >= 90 ? Yes : No;
}

}  // namespace

bool knows_dependent_launches() {
  static std::array<std::atomic<int8_t>, 64> known = {};  // by device: launches of a step ask once each
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || size_t(device) >= known.size()) return false;
  std::atomic<int8_t>& answer = known[size_t(device)];
  if (answer == Unknown) answer = ask();
  return answer == Yes;
}

}  // namespace arbalest::cuda
