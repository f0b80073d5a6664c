// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Combine: one pass over all inputs and outputs.

#include "ops/cuda/cuda_math.cuh"
#include "ops/replicas/combine.h"

namespace arbalest {

using namespace cuda;

namespace {

// A kernel's whole parameter: 7 KiB of the 32 KiB that a launch takes.
struct Combination {
  int64_t count;  // elements of each array
  int terms, outputs, lowered;
  float coefficient[kMaxReplicaArrays];
  const float* term[kMaxReplicaArrays];
  float* output[kMaxReplicaArrays];
  __nv_bfloat16* low[kMaxReplicaArrays];
};

// W elements from `at` on. Outputs may be the memory of inputs: all are read before the first is written.
template <int W>
__device__ void combine_pack(const Combination& c, int64_t at) {
  constexpr int kLoads = 4;  // under way at once: with few elements, waiting for each in turn is most of the time
  Pack<float, W> sum = {}, term[kLoads];
  for (int first = 0; first < c.terms; first += kLoads) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i < c.terms) term[i] = load<W>(c.term[first + i] + at);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first + i >= c.terms) break;
#pragma unroll
      for (int k = 0; k < W; ++k) sum.element[k] += c.coefficient[first + i] * term[i].element[k];
    }
  }
  for (int i = 0; i < c.outputs; ++i) store(c.output[i] + at, sum);
  Pack<__nv_bfloat16, W> low;
#pragma unroll
  for (int k = 0; k < W; ++k) low.element[k] = narrow<__nv_bfloat16>(sum.element[k]);
  for (int i = 0; i < c.lowered; ++i) store(c.low[i] + at, low);
}

template <int W>
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ Combination c) {
  const int64_t packs = c.count / W;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) combine_pack<W>(c, i * W);
  const int64_t rest = packs * W + thread_index();
  if (rest < c.count) combine_pack<1>(c, rest);
}

// Fills in the instance's addresses; whether all allow 16-byte accesses.
bool bind(Combination& c, const KernelContext& context) {
  bool all_aligned = true;
  for (int i = 0; i < c.terms; ++i) {
    c.term[i] = input<float>(context, size_t(i));
    all_aligned = all_aligned && aligned(c.term[i]);
  }
  for (int i = 0; i < c.outputs; ++i) {
    c.output[i] = output<float>(context, size_t(i));
    all_aligned = all_aligned && aligned(c.output[i]);
  }
  for (int i = 0; i < c.lowered; ++i) {
    c.low[i] = output<__nv_bfloat16>(context, size_t(c.outputs + i));
    all_aligned = all_aligned && aligned(c.low[i]);
  }
  return all_aligned;
}

}  // namespace

void register_replicas_combine_cuda(OpRegistry& registry) {
  registry.find("arbalest.Combine")->cuda = [](const KernelRequest& request) {
    require_float(request, 0, "float arrays");
    Combination combination = {};
    combination.count = request.inputs[0].elements();
    combination.terms = int(request.inputs.size());
    combination.lowered = int(int_attribute(request.node, "lowered"));
    combination.outputs = int(request.outputs.size()) - combination.lowered;
    const std::vector<double> coefficients = floats_attribute(request.node, "coefficients");
    std::copy(coefficients.begin(), coefficients.end(), combination.coefficient);
    const int multiprocessors = cuda_context(request).multiprocessors;
    return make_kernel([=](const KernelContext& context) {
      if (combination.count == 0) return;
      Combination c = combination;
      if (bind(c, context)) {
        combine_kernel<4><<<blocks_for((c.count + 3) / 4, multiprocessors), kThreads, 0, stream_of(context)>>>(c);
      } else {
        combine_kernel<1><<<blocks_for(c.count, multiprocessors), kThreads, 0, stream_of(context)>>>(c);
      }
      check_launch("combine");
    });
  };
}

}  // namespace arbalest
