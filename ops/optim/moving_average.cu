// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.MovingAverage: one thread takes the progress further and works out the step's share, then
// one pass over weights and average.

#include "ops/cuda/cuda_math.cuh"
#include "ops/optim/moving_average.h"

namespace arbalest {

using namespace cuda;

namespace {

// `scalars` is null if every instance has an update.
__device__ bool idle(const StepScalars* scalars) {
  return scalars != nullptr && scalars->update == 0;
}

// progress and new_progress may be the same memory.
__global__ void advance_kernel(MovingAverageSteps steps, const StepScalars* scalars,
                               const MovingAverageProgress* progress, MovingAverageProgress* new_progress,
                               float* share) {
  if (idle(scalars)) return;
  const MovingAverageProgress before = *progress;
  *share = before.updates == 0 ? 1.0f : float(steps.share(before));
  *new_progress = steps.after(before);
}

template <int W>
__device__ void move_pack(float share, const float* weights, const float* average, float* moved) {
  const Pack<float, W> w = load<W>(weights);
  Pack<float, W> e = load<W>(average);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const float toward = e.element[k] + share * (w.element[k] - e.element[k]);
    e.element[k] = share == 1.0f ? w.element[k] : toward;  // exactly the weights after the first update
  }
  store(moved, e);
}

// (P) each; moved may be the memory of average. share (1).
template <int W>
__global__ void __launch_bounds__(kThreads) move_kernel(int64_t count, const StepScalars* scalars, const float* share,
                                                        const float* weights, const float* average, float* moved) {
  if (idle(scalars)) return;
  const float by = *share;
  const int64_t packs = count / W;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    move_pack<W>(by, weights + i * W, average + i * W, moved + i * W);
  }
  const int64_t rest = packs * W + thread_index();
  if (rest < count) move_pack<1>(by, weights + rest, average + rest, moved + rest);
}

}  // namespace

void register_optim_moving_average_cuda(OpRegistry& registry) {
  using In = MovingAverageInput;
  registry.find("arbalest.MovingAverage")->cuda = [](const KernelRequest& request) {
    require_float(request, In::Weights, "float weights");
    const int64_t count = request.inputs[In::Weights].elements();
    const int multiprocessors = multiprocessors_of(request);
    const MovingAverageSteps steps = MovingAverageSteps::of(request.node);
    auto run = [=](const KernelContext& c) {
      const float *weights = input<float>(c, In::Weights), *average = input<float>(c, In::Average);
      float *moved = output<float>(c, MovingAverageOutput::Average), *share = static_cast<float*>(c.workspace);
      advance_kernel<<<1, 1, 0, stream_of(c)>>>(steps, c.scalars, input<MovingAverageProgress>(c, In::Progress),
                                                output<MovingAverageProgress>(c, MovingAverageOutput::Progress), share);
      check_launch("progress of the moving average");
      if (count == 0) return;
      if (aligned(weights) && aligned(average) && aligned(moved)) {
        move_kernel<4><<<blocks_for((count + 3) / 4, multiprocessors), kThreads, 0, stream_of(c)>>>(
            count, c.scalars, share, weights, average, moved);
      } else {
        move_kernel<1><<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(count, c.scalars, share,
                                                                                          weights, average, moved);
      }
      check_launch("moving average");
    };
    return make_kernel(run, sizeof(float));
  };
}

}  // namespace arbalest
