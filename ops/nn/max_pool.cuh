// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of MaxPool and its gradient, channels-last. With one or two spatial axes a thread takes one position and one
// pack of channels. Plain loops handle three axes and indices of maxima.

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/window.cuh"

namespace arbalest::cuda {

struct Pool {
  int64_t images;
  int channels, height, width, out_height, out_width;
  int kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width, pad_top, pad_left;

  __device__ int span_height() const { return dilation_height * (kernel_height - 1) + 1; }
  __device__ int span_width() const { return dilation_width * (kernel_width - 1) + 1; }
};

// The first position of a window that begins at `begin` (in the padding if negative) inside the image.
__device__ inline int first_inside(int begin, int dilation) {
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
__device__ inline bool exceeds(float x, float best) {
  return x > best || x != x;
}

template <typename T, int W>
inline constexpr bool kPaired = std::is_same_v<T, __nv_bfloat16>&& W % 2 == 0;

// Elements 2 i and 2 i + 1 of a pack.
template <int W>
__device__ __nv_bfloat162& pair(Pack<__nv_bfloat16, W>& pack, int i) {
  return reinterpret_cast<__nv_bfloat162*>(pack.element)[i];
}
__device__ inline uint32_t& bits(__nv_bfloat162& pair) {
  return reinterpret_cast<uint32_t&>(pair);
}

// The first maxima of a window, by channel, and at which taps they are. A NaN is a maximum, the first of them.
template <int W, typename T>
struct Maxima {
  Pack<T, W> value;

  __device__ explicit Maxima(int first_tap) {
#pragma unroll
    for (int w = 0; w < W; ++w) value.element[w] = narrow<T>(-INFINITY);
#pragma unroll
    for (int i = 0; i < kWords; ++i) tap_[i] = uint32_t(first_tap) * kOfAll;
  }

  __device__ void look_at(Pack<T, W> found, int at) {
    if constexpr (kPaired<T, W>) {
#pragma unroll
      for (int i = 0; i < W / 2; ++i) {
        __nv_bfloat162 &best = pair(value, i), mine = pair(found, i);
        const uint32_t greater = __hgtu2_mask(mine, best) & __heq2_mask(best, best);
        bits(best) = (bits(mine) & greater) | (bits(best) & ~greater);
        tap_[i] = (uint32_t(at) * kOfAll & greater) | (tap_[i] & ~greater);
      }
    } else {
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float mine = widen(found.element[w]), best = widen(value.element[w]);
        if (!(mine > best || (mine != mine && best == best))) continue;
        value.element[w] = found.element[w];
        tap_[w] = uint32_t(at);
      }
    }
  }

  __device__ Pack<uint8_t, W> taps() const {
    Pack<uint8_t, W> taps;
#pragma unroll
    for (int w = 0; w < W; ++w) taps.element[w] = uint8_t(tap_[w / kInWord] >> (16 * (w % kInWord)));
    return taps;
  }

 private:
  static constexpr int kInWord = kPaired<T, W> ? 2 : 1, kWords = W / kInWord;
  static constexpr uint32_t kOfAll = kInWord == 2 ? 0x10001 : 1;  // a number in each part of a word
  uint32_t tap_[kWords];
};

// The gradients of a window, and the taps that they go to.
template <int W, typename T>
struct WindowGradient {
  Pack<T, W> gradient;

  // A window that does not exist: none of its taps matches.
  __device__ WindowGradient() { set_taps(Pack<uint8_t, W>{}, true); }
  __device__ WindowGradient(Pack<T, W> gradient, Pack<uint8_t, W> taps) : gradient(gradient) { set_taps(taps, false); }

  // sum += the gradients of tap `at`, which is below 127.
  __device__ void add(int at, float (&sum)[W]) const {
    if constexpr (kPaired<T, W>) {
      uint32_t wanted = kBase | uint32_t(at) * 0x10001;
#pragma unroll
      for (int i = 0; i < W / 2; ++i) {
        Pack<T, W> mine = gradient;
        uint32_t tap = taps_[i];
        const uint32_t own = bits(pair(mine, i)) & __heq2_mask(reinterpret_cast<__nv_bfloat162&>(tap),
                                                               reinterpret_cast<__nv_bfloat162&>(wanted));
        sum[2 * i] += __uint_as_float(own << 16);
        sum[2 * i + 1] += __uint_as_float(own & 0xffff0000u);
      }
    } else {
#pragma unroll
      for (int w = 0; w < W; ++w) sum[w] += taps_[w] == uint32_t(at) ? widen(gradient.element[w]) : 0.0f;
    }
  }

 private:
  // Pairs of bfloat16 that are 128 and the tap, which are compared in one instruction.
  static constexpr uint32_t kBase = 0x43004300, kNone = 127;
  static constexpr int kWords = kPaired<T, W> ? W / 2 : W;

  __device__ void set_taps(Pack<uint8_t, W> taps, bool none) {
    if constexpr (kPaired<T, W>) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const uint32_t first = none ? kNone : taps.element[2 * i], second = none ? kNone : taps.element[2 * i + 1];
        taps_[i] = kBase | first | second << 16;
      }
    } else {
#pragma unroll
      for (int w = 0; w < W; ++w) taps_[w] = none ? kNone : taps.element[w];
    }
  }

  uint32_t taps_[kWords];
};

// Maxima of the window that begins at (row, column). For K × K taps without dilation all are loaded before the first
// is compared; K = 0: any window.
template <int K, int W, typename T>
__device__ Maxima<W, T> find_maxima(const Pool& pool, const T* image, int row, int column) {
  const auto inside = [&](int h, int v) { return h >= 0 && h < pool.height && v >= 0 && v < pool.width; };
  const auto pack_at = [&](int h, int v) { return load<W>(image + (int64_t(h) * pool.width + v) * pool.channels); };
  if constexpr (K > 0) {
    Maxima<W, T> maxima(max(0, -row) * K + max(0, -column));
    Pack<T, W> taps[K * K];
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap) {
      const int h = row + tap / K, v = column + tap % K;
      if (inside(h, v)) taps[tap] = pack_at(h, v);
    }
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap) {
      if (inside(row + tap / K, column + tap % K)) maxima.look_at(taps[tap], tap);
    }
    return maxima;
  } else {
    const int first_row = (first_inside(row, pool.dilation_height) - row) / pool.dilation_height;
    const int first_column = (first_inside(column, pool.dilation_width) - column) / pool.dilation_width;
    Maxima<W, T> maxima(first_row * pool.kernel_width + first_column);
    for (int tap_row = first_row; tap_row < pool.kernel_height; ++tap_row) {
      const int h = row + tap_row * pool.dilation_height;
      if (h >= pool.height) break;
      for (int tap_column = first_column; tap_column < pool.kernel_width; ++tap_column) {
        const int v = column + tap_column * pool.dilation_width;
        if (v >= pool.width) break;
        maxima.look_at(pack_at(h, v), tap_row * pool.kernel_width + tap_column);
      }
    }
    return maxima;
  }
}

// `taps`: where each maximum is, unless nullptr.
template <int K, int W, typename T>
__global__ void __launch_bounds__(kThreads) max_pool_kernel(Pool pool, const T* x, T* y, uint8_t* taps) {
  wait_for_dependencies();
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.out_height * pool.out_width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.out_height, pool.out_width, packs);
    const T* image = x + at.image * pool.height * pool.width * pool.channels + at.pack * W;
    const Maxima<W, T> maxima = find_maxima<K, W>(pool, image, at.row * pool.stride_height - pool.pad_top,
                                                  at.column * pool.stride_width - pool.pad_left);
    store(y + i * W, maxima.value);
    if (taps != nullptr) store(taps + i * W, maxima.taps());
  }
}

// True if x equals the maximum `best`, or if both are NaN.
__device__ inline bool is_maximum(float x, float best) {
  return x == best || (x != x && best != best);
}

// The windows that hold position `at` of an axis.
struct WindowRange {
  int first, last;

  __device__ WindowRange(int at, int pad, int span, int stride, int out)
      : first(max(0, quotient(at + pad - span + stride, stride))), last(min(out - 1, quotient(at + pad, stride))) {}

 private:
  // a / by for a of at least 1 − span + stride; how a negative quotient rounds does not matter. A division takes as
  // long as everything else together.
  __device__ static int quotient(int a, int by) { return by == 2 ? a >> 1 : by == 1 ? a : a / by; }
};

// dx gathers: a position sums the gradients of the windows in which it is the first maximum. So no two threads write to
// the same place, and sums have a fixed order.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_gradient_kernel(Pool pool, const T* dy, const T* x, const T* y, T* dx) {
  wait_for_dependencies();
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.height * pool.width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.height, pool.width, packs);
    const WindowRange rows(at.row, pool.pad_top, pool.span_height(), pool.stride_height, pool.out_height);
    const WindowRange columns(at.column, pool.pad_left, pool.span_width(), pool.stride_width, pool.out_width);
    const T* image = x + at.image * pool.height * pool.width * pool.channels + at.pack * W;
    const Pack<T, W> own = load<W>(x + i * W);
    float sum[W] = {};
    for (int oh = rows.first; oh <= rows.last; ++oh) {
      for (int ow = columns.first; ow <= columns.last; ++ow) {
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

// The gradient by taps: each position of dx gathers from the windows that hold it, in their order.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_taps_gradient_kernel(Pool pool, const T* dy, const uint8_t* taps, T* dx) {
  wait_for_dependencies();
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.height * pool.width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.height, pool.width, packs);
    const WindowRange rows(at.row, pool.pad_top, pool.span_height(), pool.stride_height, pool.out_height);
    const WindowRange columns(at.column, pool.pad_left, pool.span_width(), pool.stride_width, pool.out_width);
    float sum[W] = {};
    for (int out_row = rows.first; out_row <= rows.last; ++out_row) {
      const int below = at.row + pool.pad_top - out_row * pool.stride_height;
      if (below % pool.dilation_height != 0) continue;  // the window steps over this position
      for (int out_column = columns.first; out_column <= columns.last; ++out_column) {
        const int beside = at.column + pool.pad_left - out_column * pool.stride_width;
        if (beside % pool.dilation_width != 0) continue;
        const int tap = below / pool.dilation_height * pool.kernel_width + beside / pool.dilation_width;
        const int64_t out = ((at.image * pool.out_height + out_row) * pool.out_width + out_column) * packs + at.pack;
        const Pack<uint8_t, W> found = load<W>(taps + out * W);
        const Pack<T, W> gradient = load<W>(dy + out * W);
#pragma unroll
        for (int w = 0; w < W; ++w) sum[w] += found.element[w] == tap ? widen(gradient.element[w]) : 0.0f;
      }
    }
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sum[w]);
    store(dx + i * W, result);
  }
}

// Cells of an image: S × S positions from the start of one window to the start of the next; padding is cut off.
struct PoolCells {
  int first_row, first_column, rows, columns;

  PoolCells(const Pool& pool, int stride)
      : first_row(pool.pad_top / stride),
        first_column(pool.pad_left / stride),
        rows((pool.pad_top + pool.height - 1) / stride - first_row + 1),
        columns((pool.pad_left + pool.width - 1) / stride - first_column + 1) {}
};

// The same for windows of K × K, S apart, with S <= K <= 2 S and K <= 11. A thread takes a cell, which is held only by
// the window that begins there and, if K > S, by those before it. So each window is read by four threads at most.
template <int K, int S, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_cells_gradient_kernel(Pool pool, PoolCells cells, const T* dy, const uint8_t* taps, T* dx) {
  static_assert(S <= K && K <= 2 * S && K <= 11);
  wait_for_dependencies();
  constexpr int kBefore = K > S ? 1 : 0;
  const int packs = pool.channels / W;
  const int64_t count = pool.images * cells.rows * cells.columns * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, cells.rows, cells.columns, packs);
    const int row = cells.first_row + at.row, column = cells.first_column + at.column;
    WindowGradient<W, T> windows[kBefore + 1][kBefore + 1];
#pragma unroll
    for (int a = 0; a <= kBefore; ++a) {
#pragma unroll
      for (int b = 0; b <= kBefore; ++b) {
        const int out_row = row - kBefore + a, out_column = column - kBefore + b;
        if (out_row < 0 || out_row >= pool.out_height || out_column < 0 || out_column >= pool.out_width) continue;
        const int64_t out = ((at.image * pool.out_height + out_row) * pool.out_width + out_column) * packs + at.pack;
        windows[a][b] = {load<W>(dy + out * W), load<W>(taps + out * W)};
      }
    }
#pragma unroll
    for (int r = 0; r < S; ++r) {
#pragma unroll
      for (int c = 0; c < S; ++c) {
        const int h = row * S + r - pool.pad_top, v = column * S + c - pool.pad_left;
        if (h < 0 || h >= pool.height || v < 0 || v >= pool.width) continue;
        float sum[W] = {};
#pragma unroll
        for (int a = 0; a <= kBefore; ++a) {
#pragma unroll
          for (int b = 0; b <= kBefore; ++b) {
            const int tap_row = r + S * (kBefore - a), tap_column = c + S * (kBefore - b);
            if (tap_row < K && tap_column < K) windows[a][b].add(tap_row * K + tap_column, sum);
          }
        }
        Pack<T, W> result;
#pragma unroll
        for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sum[w]);
        store(dx + (((at.image * pool.height + h) * pool.width + v) * packs + at.pack) * W, result);
      }
    }
  }
}

// Order in which indices of maxima count the elements of X: row-major, or with the spatial axes reversed, so that the
// first is innermost (columns_first).
struct IndexOrder {
  bool columns_first;
  int64_t* indices;  // null if not wanted

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

// The same as max_pool_gradient_kernel, in plain loops for any window.
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

}  // namespace arbalest::cuda
