// SPDX-License-Identifier: Apache-2.0

// Depthwise convolution, channels-last: one filter to each channel. A block takes a slice of channels and every
// gridDim.y-th group of pixels; a thread takes a pack of W channels of one pixel. The slice's filters are in shared
// memory as floats, (taps, channels of the slice).

#include "ops/conv/grouped/conv_depthwise_tiles.h"
#include "ops/conv/grouped/conv_direct.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kSharedBytes = 48 << 10;
constexpr int kMostSliceChannels = 64;
constexpr int kGradientSlice = 32;  // channels of a slice where filters' gradients are summed

struct Depthwise {
  DeviceWindow window;
  int channels, taps;
  int64_t pixels, out_pixels;  // of an image
  int64_t images;

  explicit Depthwise(const ConvolutionProblem& p)
      : window(device_window(p)),
        channels(int(p.x[1])),
        taps(int(pixel_count(pixels_of(p.w)))),
        pixels(pixel_count(pixels_of(p.x))),
        out_pixels(pixel_count(pixels_of(p.y))),
        images(p.x[0]) {}

  int slice_channels(int width) const {
    const int fitting = std::min(kMostSliceChannels, kSharedBytes / int(sizeof(float)) / taps) / width * width;
    return std::min(fitting, (channels + width - 1) / width * width);
  }
};

// kForward: from = x, to = y; else from = dy, to = dx.
template <bool kForward, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    depthwise_kernel(Depthwise d, int lanes, const T* from, const T* w, const float* bias, T* to) {
  extern __shared__ float4 depthwise_memory[];
  auto* filters = reinterpret_cast<float*>(depthwise_memory);
  const int slice = lanes * W, first = int(blockIdx.x) * slice;
  const int in_slice = min(slice, d.channels - first);
  for (int j = int(threadIdx.x); j < in_slice * d.taps; j += kThreads) {
    filters[j % d.taps * slice + j / d.taps] = widen(w[int64_t(first) * d.taps + j]);
  }
  __syncthreads();
  const int lane = int(threadIdx.x) % lanes, row = int(threadIdx.x) / lanes, rows = kThreads / lanes;
  const int channel = first + lane * W;
  if (row >= rows || channel >= d.channels) return;
  float initial[W] = {};
  if (bias != nullptr) {
#pragma unroll
    for (int v = 0; v < W; ++v) initial[v] = bias[channel + v];
  }
  const int64_t count = d.images * (kForward ? d.out_pixels : d.pixels);
  const int64_t from_pixels = kForward ? d.pixels : d.out_pixels;
  for (int64_t i = int64_t(blockIdx.y) * rows + row; i < count; i += int64_t(gridDim.y) * rows) {
    const PixelPlace place(i, kForward ? d.window.out : d.window.in, 1);
    const T* image = from + place.image * from_pixels * d.channels + channel;
    float sums[W];
#pragma unroll
    for (int v = 0; v < W; ++v) sums[v] = initial[v];
    const auto add = [&](int tap, int64_t pixel) {
      const Pack<T, W> value = load<W>(image + pixel * d.channels);
      const Pack<float, W> filter = load<W>(filters + tap * slice + lane * W);
#pragma unroll
      for (int v = 0; v < W; ++v) sums[v] += widen(value.element[v]) * filter.element[v];
    };
    if constexpr (kForward) {
      d.window.for_each_input(place.at, add);
    } else {
      d.window.for_each_output(place.at, [&](int tap, int64_t pixel, const int(&)[3]) { add(tap, pixel); });
    }
    Pack<T, W> result;
#pragma unroll
    for (int v = 0; v < W; ++v) result.element[v] = narrow<T>(sums[v]);
    store(to + i * d.channels + channel, result);
  }
}

// Sums over a chunk of pixels, partial[chunk][channel][tap]: block (slice, tap, chunk).
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    depthwise_gradient_kernel(Depthwise d, int64_t chunk_pixels, const T* x, const T* dy, float* partial) {
  __shared__ __align__(16) float scratch[kThreads * W];
  constexpr int kLanes = kGradientSlice / W, kRows = kThreads / kLanes;
  const int lane = int(threadIdx.x) % kLanes, row = int(threadIdx.x) / kLanes;
  const int first = int(blockIdx.x) * kGradientSlice, channel = first + lane * W, tap = int(blockIdx.y);
  float sums[W] = {};
  const int64_t begin = int64_t(blockIdx.z) * chunk_pixels;
  const int64_t end = min(begin + chunk_pixels, d.images * d.out_pixels);
  if (channel < d.channels) {
#pragma unroll 2
    for (int64_t i = begin + row; i < end; i += kRows) {
      const PixelPlace place(i, d.window.out, 1);
      const int64_t pixel = d.window.input_pixel(place.at, tap);
      if (pixel < 0) continue;
      const Pack<T, W> value = load<W>(x + (place.image * d.pixels + pixel) * d.channels + channel);
      const Pack<T, W> gradient = load<W>(dy + i * d.channels + channel);
#pragma unroll
      for (int v = 0; v < W; ++v) sums[v] += widen(value.element[v]) * widen(gradient.element[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < W; ++v) scratch[row * kGradientSlice + lane * W + v] = sums[v];
  __syncthreads();
  const int t = int(threadIdx.x);
  if (t >= kGradientSlice || first + t >= d.channels) return;
  float total = 0;
  for (int r = 0; r < kRows; ++r) total += scratch[r * kGradientSlice + t];
  partial[(int64_t(blockIdx.z) * d.channels + first + t) * d.taps + tap] = total;
}

template <typename Out>
__global__ void __launch_bounds__(kThreads)
    depthwise_totals_kernel(int64_t count, int chunks, const float* partial, Out* dw) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    float total = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) total += partial[chunk * count + i];
    dw[i] = narrow<Out>(total);
  }
}

// Enough blocks for the device, and pixels enough for each.
int gradient_chunks(const Depthwise& d, int multiprocessors) {
  const int64_t blocks = int64_t((d.channels + kGradientSlice - 1) / kGradientSlice) * d.taps;
  const int64_t wanted = std::max<int64_t>(1, int64_t(multiprocessors) * 8 / std::max<int64_t>(blocks, 1));
  return int(std::clamp<int64_t>(d.images * d.out_pixels / 512, 1, std::min<int64_t>(wanted, 256)));
}

template <int W, typename T>
void run_gradient(DataType output_type, const Depthwise& d, const ConvolutionCall& call) {
  const T *x = static_cast<const T*>(call.a), *dy = static_cast<const T*>(call.b);
  auto* partial = static_cast<float*>(call.workspace);
  const int chunks = gradient_chunks(d, call.multiprocessors);
  const int64_t all = d.images * d.out_pixels, chunk_pixels = (all + chunks - 1) / chunks;
  const dim3 grid(unsigned((d.channels + kGradientSlice - 1) / kGradientSlice), unsigned(d.taps), unsigned(chunks));
  depthwise_gradient_kernel<W><<<grid, kThreads, 0, call.stream>>>(d, chunk_pixels, x, dy, partial);
  check_launch("depthwise gradient");
  const int64_t count = int64_t(d.channels) * d.taps;
  const unsigned blocks = blocks_for(count, call.multiprocessors);
  const auto sum_into = [&](auto* dw) {
    depthwise_totals_kernel<<<blocks, kThreads, 0, call.stream>>>(count, chunks, partial, dw);
  };
  if (output_type == DataType::Float32) {
    sum_into(static_cast<float*>(call.result));
  } else {
    sum_into(static_cast<__nv_bfloat16*>(call.result));
  }
  check_launch("depthwise gradient: totals");
}

template <int W, typename T>
void run_images(Kind kind, const Depthwise& d, const ConvolutionCall& call) {
  const T *from = static_cast<const T*>(call.a), *w = static_cast<const T*>(call.b);
  const int slice = d.slice_channels(W), lanes = slice / W, rows = kThreads / lanes;
  const bool forward = kind != Kind::GradInput;
  const int64_t slices = (d.channels + slice - 1) / slice;
  const int64_t groups = (d.images * (forward ? d.out_pixels : d.pixels) + rows - 1) / rows;
  const int64_t most = std::max<int64_t>(1, int64_t(call.multiprocessors) * 16 / slices);
  const dim3 grid(unsigned(slices), unsigned(std::clamp<int64_t>(groups, 1, std::min<int64_t>(most, 65535))));
  const size_t shared = size_t(d.taps) * size_t(slice) * sizeof(float);
  const auto kernel = forward ? depthwise_kernel<true, W, T> : depthwise_kernel<false, W, T>;
  kernel<<<grid, kThreads, shared, call.stream>>>(d, lanes, from, w, call.bias, static_cast<T*>(call.result));
  check_launch("depthwise convolution");
}

template <typename T>
void run_depthwise(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  constexpr int kWide = 16 / sizeof(T);
  const Depthwise d(problem);
  const auto with_width = [&](auto width) {
    constexpr int W = decltype(width)::value;
    if (problem.kind == Kind::GradWeight) {
      run_gradient<W, T>(problem.output_type, d, call);
    } else {
      run_images<W, T>(problem.kind, d, call);
    }
  };
  if (d.channels % kWide == 0 && aligned(call.a) && aligned(call.b) && aligned(call.result)) {
    with_width(std::integral_constant<int, kWide>{});
  } else {
    with_width(std::integral_constant<int, 1>{});
  }
}

bool takes_depthwise(const DeviceModel&, const ConvolutionProblem& problem) {
  if (problem.x[1] != problem.w[0] || problem.w[1] != 1 || problem.x[1] <= 1) return false;
  const int64_t taps = pixel_count(pixels_of(problem.w));
  return taps * kMostSliceChannels / 4 * int64_t(sizeof(float)) <= kSharedBytes;  // a slice of 16 channels at least
}

int64_t depthwise_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  if (is_tiled_depthwise(problem)) return tiled_depthwise_workspace(problem, multiprocessors);
  return gradient_chunks(Depthwise(problem), multiprocessors) * element_count(problem.w) * int64_t(sizeof(float));
}

void run_any_depthwise(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  if (is_tiled_depthwise(problem)) return run_tiled_depthwise(problem, call);
  if (problem.type == DataType::Float32) return run_depthwise<float>(problem, call);
  run_depthwise<__nv_bfloat16>(problem, call);
}

}  // namespace

constexpr ConvolutionEngine kDepthwiseEngine = {.name = "depthwise",
                                                .chosen = ConvolutionEngine::Chosen::First,
                                                .adds = ConvolutionEngine::Adds::Bias,
                                                .accepts = takes_depthwise,
                                                .workspace = depthwise_workspace,
                                                .run = run_any_depthwise};

}  // namespace arbalest
