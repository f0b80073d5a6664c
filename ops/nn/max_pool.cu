// CUDA kernels of MaxPool and its gradient, channels-last: a thread takes one position and one pack of channels, where
// there are no more than two spatial axes. For three, and for indices of maxima, there are plain loops.

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/window.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct Pool {
  int64_t images;
  int channels, height, width, out_height, out_width;
  int kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width, pad_top, pad_left;

  __device__ int span_height() const { return dilation_height * (kernel_height - 1) + 1; }
  __device__ int span_width() const { return dilation_width * (kernel_width - 1) + 1; }
};

// The first position of a window that begins at `begin` (in the padding where negative) inside the image.
__device__ int first_inside(int begin, int dilation) {
  return begin >= 0 ? begin : begin + (-begin + dilation - 1) / dilation * dilation;
}

// Coordinates of item i of (images, height, width, packs).
struct Position {
  int64_t image;
  int row, column, pack;

  __device__ Position(int64_t i, int height, int width, int packs) {
    i <= INT32_MAX ? split(uint32_t(i), uint32_t(height), uint32_t(width), uint32_t(packs))
                   : split(uint64_t(i), uint64_t(height), uint64_t(width), uint64_t(packs));
  }

 private:
  // Division of 32-bit numbers is several times faster.
  template <typename Index>
  __device__ void split(Index i, Index height, Index width, Index packs) {
    pack = int(i % packs);
    i /= packs;
    column = int(i % width);
    i /= width;
    row = int(i % height);
    image = int64_t(i / height);
  }
};

// NaN propagates.
__device__ bool exceeds(float x, float best) {
  return x > best || x != x;
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads) max_pool_kernel(Pool pool, const T* x, T* y) {
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.out_height * pool.out_width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.out_height, pool.out_width, packs);
    const int row = at.row * pool.stride_height - pool.pad_top, column = at.column * pool.stride_width - pool.pad_left;
    const int last_row = min(row + pool.span_height(), pool.height);
    const int last_column = min(column + pool.span_width(), pool.width);
    const T* image = x + at.image * pool.height * pool.width * pool.channels + at.pack * W;
    Pack<T, W> best;
#pragma unroll
    for (int w = 0; w < W; ++w) best.element[w] = narrow<T>(-INFINITY);
    const int first_column = first_inside(column, pool.dilation_width);
    for (int h = first_inside(row, pool.dilation_height); h < last_row; h += pool.dilation_height) {
      for (int v = first_column; v < last_column; v += pool.dilation_width) {
        const Pack<T, W> value = load<W>(image + (int64_t(h) * pool.width + v) * pool.channels);
#pragma unroll
        for (int w = 0; w < W; ++w) {
          if (exceeds(widen(value.element[w]), widen(best.element[w]))) best.element[w] = value.element[w];
        }
      }
    }
    store(y + i * W, best);
  }
}

// Whether element w of a pack is the maximum `best`; a NaN maximum is met by the first NaN.
__device__ bool is_maximum(float x, float best) {
  return x == best || (x != x && best != best);
}

// dx gathers: of each window that holds the position, the gradient if the position is the window's first maximum. So no
// two threads write to the same place, and sums have a fixed order.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_gradient_kernel(Pool pool, const T* dy, const T* x, const T* y, T* dx) {
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.height * pool.width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.height, pool.width, packs);
    const int padded_row = at.row + pool.pad_top, padded_column = at.column + pool.pad_left;
    const int first_out = max(0, (padded_row - pool.span_height() + pool.stride_height) / pool.stride_height);
    const int last_out = min(pool.out_height - 1, padded_row / pool.stride_height);
    const int left_out = max(0, (padded_column - pool.span_width() + pool.stride_width) / pool.stride_width);
    const int right_out = min(pool.out_width - 1, padded_column / pool.stride_width);
    const T* image = x + at.image * pool.height * pool.width * pool.channels + at.pack * W;
    const Pack<T, W> own = load<W>(x + i * W);
    float sum[W] = {};
    for (int oh = first_out; oh <= last_out; ++oh) {
      for (int ow = left_out; ow <= right_out; ++ow) {
        const int row = oh * pool.stride_height - pool.pad_top, column = ow * pool.stride_width - pool.pad_left;
        const bool between =
            (at.row - row) % pool.dilation_height != 0 || (at.column - column) % pool.dilation_width != 0;
        if (between) continue;  // the window steps over this position
        const int64_t out =
            ((at.image * pool.out_height + oh) * pool.out_width + ow) * pool.channels + int64_t(at.pack) * W;
        const Pack<T, W> best = load<W>(y + out);
        unsigned holds = 0;  // bit w: this position is a maximum of the window, none earlier found yet
#pragma unroll
        for (int w = 0; w < W; ++w) {
          holds |= unsigned(is_maximum(widen(own.element[w]), widen(best.element[w]))) << w;
        }
        const int first_column = first_inside(column, pool.dilation_width);
        for (int h = first_inside(row, pool.dilation_height); h <= at.row && holds != 0; h += pool.dilation_height) {
          const int end = h < at.row ? min(column + pool.span_width(), pool.width) : at.column;
          for (int v = first_column; v < end && holds != 0; v += pool.dilation_width) {
            const Pack<T, W> earlier = load<W>(image + (int64_t(h) * pool.width + v) * pool.channels);
#pragma unroll
            for (int w = 0; w < W; ++w) {
              if (is_maximum(widen(earlier.element[w]), widen(best.element[w]))) holds &= ~(1u << w);
            }
          }
        }
        if (holds == 0) continue;
        const Pack<T, W> gradient = load<W>(dy + out);
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] += (holds >> w & 1u) != 0 ? widen(gradient.element[w]) : 0.0f;
      }
    }
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sum[w]);
    store(dx + i * W, result);
  }
}

// What the indices of maxima count: elements of X, row-major but for the spatial axes, whose first may be innermost.
struct IndexOrder {
  bool columns_first;
  int64_t* indices;  // null: not asked for

  __device__ int64_t pixel(const DeviceWindow& window, int64_t at) const {
    if (!columns_first) return at;
    const int64_t width = window.in[2], height = window.in[1];
    return at / (height * width) + window.in[0] * (at / width % height + height * (at % width));
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    plain_max_pool_kernel(DeviceWindow window, int64_t count, int channels, IndexOrder order, const T* x, T* y) {
  const int64_t pixels = int64_t(window.in[0]) * window.in[1] * window.in[2];
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const PixelPlace place(i, window.out, channels);
    const T* image = x + place.image * pixels * channels + place.pack;
    int64_t found = -1;
    float best = -INFINITY;
    window.for_each_input(place.at, [&](int, int64_t pixel) {
      const float value = widen(image[pixel * channels]);
      if (found < 0 || exceeds(value, best)) best = value, found = pixel;
    });
    y[i] = narrow<T>(best);
    if (order.indices == nullptr) continue;
    order.indices[i] = (place.image * channels + place.pack) * pixels + order.pixel(window, found);
  }
}

// As max_pool_gradient_kernel.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    plain_max_pool_gradient_kernel(DeviceWindow window, int64_t count, int channels, const T* dy, const T* x,
                                   const T* y, T* dx) {
  const int64_t pixels = int64_t(window.in[0]) * window.in[1] * window.in[2];
  const int64_t out_pixels = int64_t(window.out[0]) * window.out[1] * window.out[2];
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const PixelPlace place(i, window.in, channels);
    const T* image = x + place.image * pixels * channels + place.pack;
    const float own = widen(x[i]);
    float sum = 0;
    window.for_each_output(place.at, [&](int own_tap, int64_t out_pixel, const int(&at)[3]) {
      const int64_t out = (place.image * out_pixels + out_pixel) * channels + place.pack;
      const float best = widen(y[out]);
      bool first = is_maximum(own, best);
      if (!first) return;
      window.for_each_input(at, [&](int tap, int64_t pixel) {
        if (tap < own_tap && is_maximum(widen(image[pixel * channels]), best)) first = false;
      });
      if (first) sum += widen(dy[out]);
    });
    dx[i] = narrow<T>(sum);
  }
}

SlidingWindow sliding_window(const Node& node, const TensorType& x, const TensorType& y) {
  return {pixels_of(x.shape), pixels_of(y.shape), window_of(node, x.shape)};
}

// Of a window with extents of 1 along depth.
Pool make_pool(const SlidingWindow& sliding, const TensorType& x) {
  const Window& window = sliding.window;
  return {.images = x.shape[0],
          .channels = int(x.shape[1]),
          .height = int(sliding.in[1]),
          .width = int(sliding.in[2]),
          .out_height = int(sliding.out[1]),
          .out_width = int(sliding.out[2]),
          .kernel_height = int(window.kernel[1]),
          .kernel_width = int(window.kernel[2]),
          .stride_height = int(window.stride[1]),
          .stride_width = int(window.stride[2]),
          .dilation_height = int(window.dilation[1]),
          .dilation_width = int(window.dilation[2]),
          .pad_top = int(window.pad_begin[1]),
          .pad_left = int(window.pad_begin[2])};
}

std::unique_ptr<Kernel> plain_max_pool(const KernelRequest& request) {
  const DeviceWindow window(sliding_window(request.node, request.inputs[0], request.outputs[0]));
  const int64_t count = request.outputs[0].elements();
  const int channels = int(request.inputs[0].shape[1]), multiprocessors = cuda_context(request).multiprocessors;
  const bool indexed = request.has_output(1), columns_first = int_attribute(request.node, "storage_order") != 0;
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const IndexOrder order{columns_first, indexed ? output<int64_t>(c, 1) : nullptr};
      plain_max_pool_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          window, count, channels, order, input<T>(c, 0), output<T>(c, 0));
      check_launch("max_pool");
    });
  });
}

std::unique_ptr<Kernel> plain_max_pool_gradient(const KernelRequest& request) {
  const DeviceWindow window(sliding_window(request.node, request.inputs[1], request.inputs[2]));
  const int64_t count = request.outputs[0].elements();
  const int channels = int(request.inputs[1].shape[1]), multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[1].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      plain_max_pool_gradient_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
          window, count, channels, input<T>(c, 0), input<T>(c, 1), input<T>(c, 2), output<T>(c, 0));
      check_launch("max_pool gradient");
    });
  });
}

std::unique_ptr<Kernel> max_pool(const KernelRequest& request) {
  if (request.inputs[0].shape.size() > 4 || request.has_output(1)) return plain_max_pool(request);
  const Pool pool = make_pool(sliding_window(request.node, request.inputs[0], request.outputs[0]), request.inputs[0]);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const T* x = input<T>(c, 0);
      T* y = output<T>(c, 0);
      if (pool.channels % kWide == 0 && aligned(x) && aligned(y)) {
        max_pool_kernel<kWide><<<blocks_for(count / kWide, multiprocessors), kThreads, 0, stream_of(c)>>>(pool, x, y);
      } else {
        max_pool_kernel<1><<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(pool, x, y);
      }
      check_launch("max_pool");
    });
  });
}

std::unique_ptr<Kernel> max_pool_gradient(const KernelRequest& request) {
  if (request.inputs[1].shape.size() > 4) return plain_max_pool_gradient(request);
  const Pool pool = make_pool(sliding_window(request.node, request.inputs[1], request.inputs[2]), request.inputs[1]);
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[1].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const T *dy = input<T>(c, 0), *x = input<T>(c, 1), *y = input<T>(c, 2);
      T* dx = output<T>(c, 0);
      if (pool.channels % kWide == 0 && aligned(dy) && aligned(x) && aligned(y) && aligned(dx)) {
        max_pool_gradient_kernel<kWide>
            <<<blocks_for(count / kWide, multiprocessors), kThreads, 0, stream_of(c)>>>(pool, dy, x, y, dx);
      } else {
        max_pool_gradient_kernel<1>
            <<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(pool, dy, x, y, dx);
      }
      check_launch("max_pool gradient");
    });
  });
}

}  // namespace

void register_nn_max_pool_cuda(OpRegistry& registry) {
  registry.find("MaxPool")->cuda = max_pool;
  registry.find("arbalest.MaxPoolGrad")->cuda = max_pool_gradient;
}

}  // namespace arbalest
