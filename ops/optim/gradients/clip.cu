// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.ClipFactor: sums of squares by block, then their sum by one block. Both are in double, since
// squares of finite gradients may leave the range of float, and in an order that depends on the number of elements, the
// device and, without --deterministic, how many learners share it.

#include "ops/cuda/sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

template <int W>
__device__ double sum_of_squares(const float* values) {
  const Pack<float, W> pack = load<W>(values);
  double sum = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) sum += double(pack.element[k]) * double(pack.element[k]);
  return sum;
}

// gradients (P); sums (blocks of the grid).
template <int W>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(int64_t count, const StepScalars* scalars, const float* gradients, double* sums) {
  if (scalars->update == 0) return;
  const int64_t packs = count / W, rest = packs * W + thread_index();
  double sum = 0;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) sum += sum_of_squares<W>(gradients + i * W);
  if (rest < count) sum += sum_of_squares<1>(gradients + rest);
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Runs in one block. `weight`: the divisor of the gradients, 0 if they are zeros; it may be null.
__global__ void __launch_bounds__(kThreads)
    factor_kernel(int blocks, double bound, bool skips, const float* weight, const StepScalars* scalars,
                  const double* sums, float* factor) {
  if (scalars->update == 0) return;
  double sum = 0;
  for (int i = int(threadIdx.x); i < blocks; i += kThreads) sum += sums[i];
  const double norm = sqrt(block_sum(sum));
  if (threadIdx.x != 0) return;
  const double share = weight == nullptr ? 1.0 : *weight == 0.0f ? 0.0 : 1.0 / double(*weight);
  const double clipped = bound > 0 && norm * share > bound ? bound / norm : share;
  *factor = float(isfinite(norm) ? clipped : skips ? -1.0 : share);
}

void launch_squares(unsigned blocks, int64_t count, const float* gradients, const KernelContext& c) {
  auto* sums = static_cast<double*>(c.workspace);
  if (aligned(gradients)) {
    squares_kernel<4><<<blocks, kThreads, 0, stream_of(c)>>>(count, c.scalars, gradients, sums);
  } else {
    squares_kernel<1><<<blocks, kThreads, 0, stream_of(c)>>>(count, c.scalars, gradients, sums);
  }
  check_launch("squares of gradients");
}

}  // namespace

void register_optim_gradients_clip_cuda(OpRegistry& registry) {
  registry.find("arbalest.ClipFactor")->cuda = [](const KernelRequest& request) {
    require_float(request, 0, "float gradients");
    const int64_t weight = int_attribute(request.node, "weight");
    const int64_t count = weight >= 0 ? weight : request.inputs[0].elements();
    const double bound = float_attribute(request.node, "norm");
    const bool skips = int_attribute(request.node, "skip") != 0;
    // Without a bound nothing has to be known of the norm.
    const bool sums_squares = bound > 0 || skips;
    const unsigned blocks = sums_squares ? blocks_for((count + 3) / 4, multiprocessors_of(request)) : 0;
    auto run = [=](const KernelContext& c) {
      const float* gradients = input<float>(c, 0);
      auto* sums = static_cast<double*>(c.workspace);
      if (blocks > 0) launch_squares(blocks, count, gradients, c);
      factor_kernel<<<1, kThreads, 0, stream_of(c)>>>(
          int(blocks), bound, skips, weight >= 0 ? gradients + weight : nullptr, c.scalars, sums, output<float>(c, 0));
      check_launch("clip factor");
    };
    return make_kernel(run, int64_t(blocks) * int64_t(sizeof(double)));
  };
}

}  // namespace arbalest
