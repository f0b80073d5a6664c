// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of StochasticDepth and its gradient.

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/dropout.h"

namespace arbalest {

using namespace cuda;

namespace {

// Rows of blocks take samples, and draw once for each; the blocks of a row share a sample's packs of W elements.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    stochastic_depth_kernel(Dropping dropping, int64_t length, const StepScalars* scalars, const T* x, T* y) {
  for (int64_t sample = blockIdx.y; sample < dropping.count; sample += gridDim.y) {
    const bool keep = dropping.keeps(dropping.draw_of(*scalars, sample / 4), int(sample % 4));
    const T* from = x + sample * length;
    T* to = y + sample * length;
    for (int64_t i = thread_index() * W; i < length; i += thread_count() * W) {
      Pack<T, W> pack = {};
      if (keep) {
        pack = load<W>(from + i);
#pragma unroll
        for (int w = 0; w < W; ++w) pack.element[w] = narrow<T>(widen(pack.element[w]) * dropping.scale);
      }
      store(to + i, pack);
    }
  }
}

template <int W, typename T>
void launch(const KernelContext& c, const Dropping& dropping, int64_t length, int multiprocessors) {
  constexpr int64_t kMostRows = 4096;
  const unsigned rows = unsigned(std::min(dropping.count, kMostRows));
  const dim3 blocks(std::max(1u, blocks_for(dropping.count * length / W, multiprocessors) / rows), rows);
  stochastic_depth_kernel<W>
      <<<blocks, kThreads, 0, stream_of(c)>>>(dropping, length, c.scalars, input<T>(c, 0), output<T>(c, 0));
  check_launch("stochastic depth");
}

std::unique_ptr<Kernel> make_stochastic_depth(const KernelRequest& request, const std::string& name) {
  const int64_t samples = request.inputs[0].shape[0];
  const int64_t length = samples == 0 ? 0 : request.inputs[0].elements() / samples;
  const Dropping dropping(request.node, name, samples);
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int W = int(16 / sizeof(T));
    return make_kernel([=](const KernelContext& c) {
      if (samples == 0 || length == 0) return;
      const bool packs = length % W == 0 && aligned(c.inputs[0]) && aligned(c.outputs[0]);
      packs ? launch<W, T>(c, dropping, length, multiprocessors) : launch<1, T>(c, dropping, length, multiprocessors);
    });
  });
}

}  // namespace

void register_nn_stochastic_depth_cuda(OpRegistry& registry) {
  registry.find("arbalest.StochasticDepth")->cuda = [](const KernelRequest& request) {
    return make_stochastic_depth(request, request.node.name);
  };
  registry.find("arbalest.StochasticDepthGrad")->cuda = [](const KernelRequest& request) {
    return make_stochastic_depth(request, string_attribute(request.node, "node"));
  };
}

}  // namespace arbalest
