// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of AveragePool and its gradient, channels-last: a thread takes one position and one pack of channels.

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/window.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct AveragePool {
  DeviceWindow window;
  int channels;
  int64_t pixels, out_pixels;
  bool count_pads;

  AveragePool(const Node& node, const TensorType& x, const TensorType& y)
      : window(SlidingWindow{pixels_of(x.shape), pixels_of(y.shape), window_of(node, x.shape)}),
        channels(int(x.shape[1])),
        pixels(pixel_count(pixels_of(x.shape))),
        out_pixels(pixel_count(pixels_of(y.shape))),
        count_pads(int_attribute(node, "count_include_pad") != 0) {}

  // 1 / the elements of the window at `at` that count.
  __device__ float share(const int (&at)[3]) const {
    int count = 1;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int begin = at[axis] * window.stride[axis] - window.pad_begin[axis];
      const int low = count_pads ? -window.pad_begin[axis] : 0;
      const int high = window.in[axis] + (count_pads ? window.pad_end[axis] : 0);
      count *= elements_between(begin, window.dilation[axis], window.kernel[axis], low, high);
    }
    return 1.0f / float(max(count, 1));
  }
};

template <int W, typename T>
__global__ void __launch_bounds__(kThreads) average_pool_kernel(AveragePool pool, int64_t count, const T* x, T* y) {
  for (int64_t i = thread_index(); i < count / W; i += thread_count()) {
    const PixelPlace place(i, pool.window.out, pool.channels / W);
    const T* image = x + place.image * pool.pixels * pool.channels + place.pack * W;
    float sums[W] = {};
    pool.window.for_each_input(place.at, [&](int, int64_t pixel) {
      const Pack<T, W> value = load<W>(image + pixel * pool.channels);
#pragma unroll
      for (int w = 0; w < W; ++w) sums[w] += widen(value.element[w]);
    });
    const float share = pool.share(place.at);
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sums[w] * share);
    store(y + i * W, result);
  }
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    average_pool_gradient_kernel(AveragePool pool, int64_t count, const T* dy, T* dx) {
  for (int64_t i = thread_index(); i < count / W; i += thread_count()) {
    const PixelPlace place(i, pool.window.in, pool.channels / W);
    const T* gradients = dy + place.image * pool.out_pixels * pool.channels + place.pack * W;
    float sums[W] = {};
    pool.window.for_each_output(place.at, [&](int, int64_t pixel, const int(&at)[3]) {
      const float share = pool.share(at);
      const Pack<T, W> value = load<W>(gradients + pixel * pool.channels);
#pragma unroll
      for (int w = 0; w < W; ++w) sums[w] += widen(value.element[w]) * share;
    });
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sums[w]);
    store(dx + i * W, result);
  }
}

// kForward: input 0 is X, output 0 is Y; else dY and dX.
template <bool kForward>
std::unique_ptr<Kernel> average_pool(const KernelRequest& request) {
  const AveragePool pool(request.node, request.inputs[kForward ? 0 : 1],
                         kForward ? request.outputs[0] : request.inputs[0]);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const T* from = input<T>(c, 0);
      T* to = output<T>(c, 0);
      const auto launch = [&](auto width) {
        constexpr int W = decltype(width)::value;
        const unsigned blocks = blocks_for(count / W, multiprocessors);
        if constexpr (kForward) {
          average_pool_kernel<W><<<blocks, kThreads, 0, stream_of(c)>>>(pool, count, from, to);
        } else {
          average_pool_gradient_kernel<W><<<blocks, kThreads, 0, stream_of(c)>>>(pool, count, from, to);
        }
        check_launch("average_pool");
      };
      if (pool.channels % kWide == 0 && aligned(from) && aligned(to)) {
        launch(std::integral_constant<int, kWide>{});
      } else {
        launch(std::integral_constant<int, 1>{});
      }
    });
  });
}

}  // namespace

void register_nn_average_pool_cuda(OpRegistry& registry) {
  registry.find("AveragePool")->cuda = average_pool<true>;
  registry.find("arbalest.AveragePoolGrad")->cuda = average_pool<false>;
}

}  // namespace arbalest
