// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.ClearGaps: a block for each gap, and a launch for as many as its parameters hold.

#include <algorithm>
#include <vector>

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct ClearedGaps {
  static constexpr int kMost = 200;
  int count = 0;
  int64_t first[kMost], elements[kMost];
};

__global__ void __launch_bounds__(kThreads)
    clear_gaps_kernel(const __grid_constant__ ClearedGaps gaps, float* gradients) {
  const int64_t first = gaps.first[blockIdx.x], elements = gaps.elements[blockIdx.x];
  for (int64_t i = threadIdx.x; i < elements; i += kThreads) gradients[first + i] = 0.0f;
}

}  // namespace

void register_optim_gradients_clear_gaps_cuda(OpRegistry& registry) {
  registry.find("arbalest.ClearGaps")->cuda = [](const KernelRequest& request) {
    require_float(request, 0, "float gradients");
    const std::vector<int64_t> firsts = ints_attribute(request.node, "firsts");
    const std::vector<int64_t> counts = ints_attribute(request.node, "counts");
    std::vector<ClearedGaps> launches;
    for (size_t i = 0; i < firsts.size(); ++i) {
      if (launches.empty() || launches.back().count == ClearedGaps::kMost) launches.emplace_back();
      ClearedGaps& gaps = launches.back();
      gaps.first[gaps.count] = firsts[i];
      gaps.elements[gaps.count++] = counts[i];
    }
    return make_kernel([launches](const KernelContext& c) {
      for (const ClearedGaps& gaps : launches) {
        clear_gaps_kernel<<<unsigned(gaps.count), kThreads, 0, stream_of(c)>>>(gaps, output<float>(c, 0));
        check_launch("gaps between gradients");
      }
    });
  };
}

}  // namespace arbalest
