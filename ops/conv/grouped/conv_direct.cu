// SPDX-License-Identifier: Apache-2.0

// Convolution by plain loops: forward, gradient of the input, gradient of the filters.

#include "ops/conv/grouped/conv_direct.cuh"
#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct DirectExtents {
  int channels, filters, group_channels, group_filters, taps;
  int64_t images, pixels, out_pixels;
  DeviceWindow window;

  explicit DirectExtents(const ConvolutionProblem& p)
      : channels(int(p.x[1])),
        filters(int(p.w[0])),
        group_channels(int(p.w[1])),
        group_filters(int(p.w[0] * p.w[1] / std::max<int64_t>(p.x[1], 1))),
        taps(int(pixel_count(pixels_of(p.w)))),
        images(p.x[0]),
        pixels(pixel_count(pixels_of(p.x))),
        out_pixels(pixel_count(pixels_of(p.y))),
        window(device_window(p)) {}
};

// y: (N,…,K), one thread an element.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(DirectExtents e, const T* x, const T* w, const float* bias, T* y) {
  const int64_t count = e.images * e.out_pixels * e.filters;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const PixelPlace place(i, e.window.out, e.filters);
    const int filter = place.pack, first_channel = filter / e.group_filters * e.group_channels;
    const T* image = x + place.image * e.pixels * e.channels + first_channel;
    const T* weights = w + int64_t(filter) * e.taps * e.group_channels;
    float sum = bias != nullptr ? bias[filter] : 0.0f;
    e.window.for_each_input(place.at, [&](int tap, int64_t pixel) {
      const T *from = image + pixel * e.channels, *weight = weights + int64_t(tap) * e.group_channels;
      for (int c = 0; c < e.group_channels; ++c) sum += widen(from[c]) * widen(weight[c]);
    });
    y[i] = narrow<T>(sum);
  }
}

// dx: (N,…,C), one thread an element.
template <typename T>
__global__ void __launch_bounds__(kThreads) grad_input_kernel(DirectExtents e, const T* dy, const T* w, T* dx) {
  const int64_t count = e.images * e.pixels * e.channels;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const PixelPlace place(i, e.window.in, e.channels);
    const int first_filter = place.pack / e.group_channels * e.group_filters, within = place.pack % e.group_channels;
    const T* gradients = dy + place.image * e.out_pixels * e.filters;
    float sum = 0;
    e.window.for_each_output(place.at, [&](int tap, int64_t pixel, const int(&)[3]) {
      for (int k = first_filter; k < first_filter + e.group_filters; ++k) {
        const int64_t weight = (int64_t(k) * e.taps + tap) * e.group_channels + within;
        sum += widen(gradients[pixel * e.filters + k]) * widen(w[weight]);
      }
    });
    dx[i] = narrow<T>(sum);
  }
}

// dw: (K,…,C/g), one block an element.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) grad_weight_kernel(DirectExtents e, const T* x, const T* dy, Out* dw) {
  const int64_t count = int64_t(e.filters) * e.taps * e.group_channels;
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const int within = int(i % e.group_channels), tap = int(i / e.group_channels % e.taps);
    const int filter = int(i / e.group_channels / e.taps);
    const int channel = filter / e.group_filters * e.group_channels + within;
    float sum = 0;
    for (int64_t k = threadIdx.x; k < e.images * e.out_pixels; k += kThreads) {
      const PixelPlace place(k, e.window.out, 1);
      const int64_t pixel = e.window.input_pixel(place.at, tap);
      if (pixel < 0) continue;
      sum += widen(x[(place.image * e.pixels + pixel) * e.channels + channel]) * widen(dy[k * e.filters + filter]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[i] = narrow<Out>(sum);
  }
}

template <typename T>
void run_direct(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const T *a = static_cast<const T*>(call.a), *b = static_cast<const T*>(call.b);
  const int multiprocessors = call.multiprocessors;
  const cudaStream_t stream = call.stream;
  void* const result = call.result;
  const DirectExtents extents(problem);
  const int64_t count = element_count(problem.output_shape());
  if (count == 0) return;
  switch (problem.kind) {
    case ConvolutionProblem::Kind::Forward:
    case ConvolutionProblem::Kind::ForwardBias:
      forward_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(extents, a, b, call.bias,
                                                                                  static_cast<T*>(result));
      break;
    case ConvolutionProblem::Kind::GradInput:
      grad_input_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(extents, a, b,
                                                                                     static_cast<T*>(result));
      break;
    case ConvolutionProblem::Kind::GradWeight: {
      const unsigned blocks = unsigned(std::min<int64_t>(count, int64_t(multiprocessors) * 64));
      if (problem.output_type == DataType::Float32) {
        grad_weight_kernel<<<blocks, kThreads, 0, stream>>>(extents, a, b, static_cast<float*>(result));
      } else {
        grad_weight_kernel<<<blocks, kThreads, 0, stream>>>(extents, a, b, static_cast<__nv_bfloat16*>(result));
      }
      break;
    }
  }
  check_launch("direct convolution");
}

void run_plain_loops(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  if (problem.type == DataType::Float32) {
    run_direct<float>(problem, call);
  } else {
    run_direct<__nv_bfloat16>(problem, call);
  }
}

}  // namespace

constexpr ConvolutionEngine kPlainLoopsEngine = {
    .name = "plain loops",
    .chosen = ConvolutionEngine::Chosen::Last,
    .adds = ConvolutionEngine::Adds::Bias,
    .accepts = [](const DeviceModel&, const ConvolutionProblem&) { return true; },
    .run = run_plain_loops};

}  // namespace arbalest
