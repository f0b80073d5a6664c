// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of GridSample and its gradients: a thread an element of Y, and for the grid's gradient a warp a place.

#include "ops/indexing/grid_sample.h"

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// The i-th element of Y in the order of its memory.
struct ElementOfY {
  int64_t sample, channel, place;

  __device__ ElementOfY(const GridSampling& s, int64_t i) {
    const bool channels_last = s.y.channel == 1;
    const int64_t inner = channels_last ? s.channels : s.places, outer = channels_last ? s.places : s.channels;
    sample = i / (inner * outer);
    channel = channels_last ? i % inner : i / inner % outer;
    place = channels_last ? i / inner % outer : i % inner;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) sample_kernel(GridSampling s, const T* x, const float* grid, T* y) {
  for (int64_t i = thread_index(); i < s.samples * s.channels * s.places; i += thread_count()) {
    const ElementOfY at(s, i);
    const T* image = x + at.sample * s.channels * s.pixels + at.channel * s.x.channel;
    float sum = 0;
    SampledPlace<float>(s, grid, at.sample, at.place).for_each(s, [&](int64_t pixel, float weight, const int*) {
      sum += weight * widen(image[pixel * s.x.pixel]);
    });
    y[i] = narrow<T>(sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sample_gradient_kernel(GridSampling s, const T* dy, const float* grid, float* dx) {
  for (int64_t i = thread_index(); i < s.samples * s.channels * s.places; i += thread_count()) {
    const ElementOfY at(s, i);
    float* image = dx + at.sample * s.channels * s.pixels + at.channel * s.x.channel;
    const float value = widen(dy[i]);
    SampledPlace<float>(s, grid, at.sample, at.place).for_each(s, [&](int64_t pixel, float weight, const int*) {
      atomicAdd(image + pixel * s.x.pixel, weight * value);
    });
  }
}

// Adds in a fixed order: a thread has a channel of a sample to itself.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ordered_gradient_kernel(GridSampling s, const T* dy, const float* grid, float* dx) {
  for (int64_t i = thread_index(); i < s.samples * s.channels; i += thread_count()) {
    const int64_t sample = i / s.channels, channel = i % s.channels;
    float* image = dx + sample * s.channels * s.pixels + channel * s.x.channel;
    const T* from = dy + sample * s.channels * s.places + channel * s.y.channel;
    for (int64_t place = 0; place < s.places; ++place) {
      const float value = widen(from[place * s.y.pixel]);
      SampledPlace<float>(s, grid, sample, place).for_each(s, [&](int64_t pixel, float weight, const int*) {
        image[pixel * s.x.pixel] += weight * value;
      });
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    grid_gradient_kernel(GridSampling s, const T* dy, const T* x, const float* grid, float* dgrid) {
  const int lane = int(threadIdx.x) % 32;
  for (int64_t i = thread_index() / 32; i < s.samples * s.places; i += thread_count() / 32) {
    const int64_t sample = i / s.places, place = i % s.places;
    const T* image = x + sample * s.channels * s.pixels;
    const T* from = dy + sample * s.channels * s.places + place * s.y.pixel;
    const SampledPlace<float> sampled(s, grid, sample, place);
    float sums[GridSampling::kMostAxes] = {};
    sampled.for_each(s, [&](int64_t pixel, float, const int* tap) {
      float product = 0;
      for (int64_t c = lane; c < s.channels; c += 32) {
        product += widen(image[pixel * s.x.pixel + c * s.x.channel]) * widen(from[c * s.y.channel]);
      }
      for (int axis = 0; axis < s.axes; ++axis) sums[axis] += sampled.slope(tap, axis) * product;
    });
    for (int axis = 0; axis < s.axes; ++axis) {
      const float sum = warp_sum(sums[axis]);
      if (lane == 0) dgrid[s.grid_at(sample, place, axis)] = sum;
    }
  }
}

std::unique_ptr<Kernel> sample(const KernelRequest& request) {
  const GridSampling s(request.node, request.inputs[GridSampleInput::X], request.inputs[GridSampleInput::Grid],
                       request.outputs[0]);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[GridSampleInput::X].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      sample_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          s, input<T>(c, GridSampleInput::X), input<float>(c, GridSampleInput::Grid), output<T>(c, 0));
      check_launch("grid_sample");
    });
  });
}

std::unique_ptr<Kernel> sample_gradient(const KernelRequest& request) {
  const GridSampling s(request.node, request.outputs[0], request.inputs[GridSampleGradInput::Grid],
                       request.inputs[GridSampleGradInput::dY]);
  const int64_t bytes = request.outputs[0].bytes(), count = request.inputs[GridSampleGradInput::dY].elements();
  const bool ordered = request.deterministic;
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[GridSampleGradInput::dY].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (bytes == 0) return;
      CUDA_CHECK(cudaMemsetAsync(c.outputs[0], 0, size_t(bytes), stream_of(c)));
      if (count == 0) return;
      const auto kernel = ordered ? ordered_gradient_kernel<T> : sample_gradient_kernel<T>;
      kernel<<<blocks_for(ordered ? s.samples * s.channels : count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          s, input<T>(c, GridSampleGradInput::dY), input<float>(c, GridSampleGradInput::Grid), output<float>(c, 0));
      check_launch("gradient of grid_sample");
    });
  });
}

std::unique_ptr<Kernel> grid_gradient(const KernelRequest& request) {
  const GridSampling s(request.node, request.inputs[GridSampleGridGradInput::X],
                       request.inputs[GridSampleGridGradInput::Grid], request.inputs[GridSampleGridGradInput::dY]);
  const int64_t count = s.samples * s.places;
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[GridSampleGridGradInput::dY].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      grid_gradient_kernel<<<blocks_for(count * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(
          s, input<T>(c, GridSampleGridGradInput::dY), input<T>(c, GridSampleGridGradInput::X),
          input<float>(c, GridSampleGridGradInput::Grid), output<float>(c, 0));
      check_launch("gradient of grid_sample's grid");
    });
  });
}

}  // namespace

void register_indexing_grid_sample_cuda(OpRegistry& registry) {
  registry.find("GridSample")->cuda = sample;
  registry.find("arbalest.GridSampleGrad")->cuda = sample_gradient;
  registry.find("arbalest.GridSampleGridGrad")->cuda = grid_gradient;
}

}  // namespace arbalest
