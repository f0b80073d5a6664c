#pragma once
// Kernels of MaxPool and its gradient, channels-last: a thread takes one position and one pack of channels, where there
// are no more than two spatial axes. For three, and for indices of maxima, there are plain loops.

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

// The first position of a window that begins at `begin` (in the padding where negative) inside the image.
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

// The first maxima of a window, by channel, and at which taps they are: numbers that T holds exactly. A NaN is a
// maximum, the first of them.
template <int W, typename T>
struct Maxima {
  Pack<T, W> value, tap;

  __device__ explicit Maxima(int first_tap) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      value.element[w] = narrow<T>(-INFINITY);
      tap.element[w] = narrow<T>(float(first_tap));
    }
  }

  __device__ void look_at(Pack<T, W> found, float at) {
    if constexpr (kPaired<T, W>) {
      const __nv_bfloat162 both = __float2bfloat162_rn(at);
#pragma unroll
      for (int i = 0; i < W / 2; ++i) {
        __nv_bfloat162 &best = pair(value, i), &best_tap = pair(tap, i), mine = pair(found, i), my_tap = both;
        const uint32_t greater = __hgtu2_mask(mine, best) & __heq2_mask(best, best);
        bits(best) = (bits(mine) & greater) | (bits(best) & ~greater);
        bits(best_tap) = (bits(my_tap) & greater) | (bits(best_tap) & ~greater);
      }
    } else {
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const float mine = widen(found.element[w]), best = widen(value.element[w]);
        if (!(mine > best || (mine != mine && best == best))) continue;
        value.element[w] = found.element[w];
        tap.element[w] = narrow<T>(at);
      }
    }
  }
};

// sum += `gradient` where `tap` is `at`.
template <int W, typename T>
__device__ void add_where(Pack<T, W> tap, float at, Pack<T, W> gradient, float (&sum)[W]) {
  if constexpr (kPaired<T, W>) {
    const __nv_bfloat162 both = __float2bfloat162_rn(at);
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
      const uint32_t own = bits(pair(gradient, i)) & __heq2_mask(pair(tap, i), both);
      sum[2 * i] += __uint_as_float(own << 16);
      sum[2 * i + 1] += __uint_as_float(own & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int w = 0; w < W; ++w) sum[w] += widen(tap.element[w]) == at ? widen(gradient.element[w]) : 0.0f;
  }
}

// Of the window that begins at (row, column). K × K taps without dilation are loaded before the first is looked at; K
// = 0: any window.
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
      if (inside(row + tap / K, column + tap % K)) maxima.look_at(taps[tap], float(tap));
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
        maxima.look_at(pack_at(h, v), float(tap_row * pool.kernel_width + tap_column));
      }
    }
    return maxima;
  }
}

template <int K, int W, typename T>
__global__ void __launch_bounds__(kThreads) max_pool_kernel(Pool pool, const T* x, T* y) {
  wait_for_dependencies();
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.out_height * pool.out_width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.out_height, pool.out_width, packs);
    const T* image = x + at.image * pool.height * pool.width * pool.channels + at.pack * W;
    store(y + i * W, find_maxima<K, W>(pool, image, at.row * pool.stride_height - pool.pad_top,
                                       at.column * pool.stride_width - pool.pad_left)
                         .value);
  }
}

// Whether element w of a pack is the maximum `best`; a NaN maximum is met by the first NaN.
__device__ inline bool is_maximum(float x, float best) {
  return x == best || (x != x && best != best);
}

// The windows that hold position `at` of an axis, or one of `at` to `last`.
struct WindowRange {
  int first, last;

  __device__ WindowRange(int at, int last_at, int pad, int span, int stride, int out)
      : first(max(0, quotient(at + pad - span + stride, stride))),
        last(min(out - 1, quotient(last_at + pad, stride))) {}

 private:
  // Of what is at least 1 − span + stride; below 0 rounded either way. Division takes as long as the rest together.
  __device__ static int quotient(int a, int by) { return by == 2 ? a >> 1 : by == 1 ? a : a / by; }
};

// dx gathers: of each window that holds the position, the gradient if the position is the window's first maximum. So no
// two threads write to the same place, and sums have a fixed order.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_gradient_kernel(Pool pool, const T* dy, const T* x, const T* y, T* dx) {
  wait_for_dependencies();
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.height * pool.width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.height, pool.width, packs);
    const WindowRange rows(at.row, at.row, pool.pad_top, pool.span_height(), pool.stride_height, pool.out_height);
    const WindowRange columns(at.column, at.column, pool.pad_left, pool.span_width(), pool.stride_width,
                              pool.out_width);
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

// The gradient, tile by tile of the image: a block first finds where each window that touches its tile has its first
// maximum, so that X is read once, and keeps that and the window's gradient in shared memory. Sums are as above.
struct PoolTiles {
  static constexpr int kRows = 16, kColumns = 16, kPacks = 8;

  int rows, columns, groups;        // tiles of an image; groups of packs
  int window_rows, window_columns;  // that may touch a tile, at most

  explicit PoolTiles(const Pool& pool, int packs)
      : rows((pool.height + kRows - 1) / kRows),
        columns((pool.width + kColumns - 1) / kColumns),
        groups((packs + kPacks - 1) / kPacks),
        window_rows((kRows + pool.dilation_height * (pool.kernel_height - 1)) / pool.stride_height + 1),
        window_columns((kColumns + pool.dilation_width * (pool.kernel_width - 1)) / pool.stride_width + 1) {}

  int64_t blocks(const Pool& pool) const { return pool.images * rows * columns * groups; }
  // Of packs of `width` elements: their gradient, and where each has its maximum.
  size_t shared_bytes(int width, size_t size) const {
    return size_t(window_rows) * size_t(window_columns) * kPacks * size_t(width) * 2 * size;
  }
  bool fits(const Pool& pool, int width, size_t size) const {
    return pool.kernel_height * pool.kernel_width <= 255 && shared_bytes(width, size) <= 48 << 10 &&
           blocks(pool) <= INT32_MAX;
  }
};

template <int K, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    max_pool_tile_gradient_kernel(Pool pool, PoolTiles tiles, const T* dy, const T* x, T* dx) {
  wait_for_dependencies();
  constexpr int kPacks = PoolTiles::kPacks;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const gradients = reinterpret_cast<Pack<T, W>*>(shared);
  auto* const places = gradients + (tiles.window_rows * tiles.window_columns * kPacks);

  unsigned block = blockIdx.x;
  const int group = int(block % unsigned(tiles.groups));
  block /= unsigned(tiles.groups);
  const int left = int(block % unsigned(tiles.columns)) * PoolTiles::kColumns;
  block /= unsigned(tiles.columns);
  const int top = int(block % unsigned(tiles.rows)) * PoolTiles::kRows;
  const int64_t image = block / unsigned(tiles.rows);
  const int bottom = min(top + PoolTiles::kRows, pool.height) - 1;
  const int right = min(left + PoolTiles::kColumns, pool.width) - 1;
  const WindowRange out_rows(top, bottom, pool.pad_top, pool.span_height(), pool.stride_height, pool.out_height);
  const WindowRange out_columns(left, right, pool.pad_left, pool.span_width(), pool.stride_width, pool.out_width);
  const int window_columns = out_columns.last - out_columns.first + 1;
  const int windows = (out_rows.last - out_rows.first + 1) * window_columns;
  const int lane = int(threadIdx.x) % kPacks, first = int(threadIdx.x) / kPacks;
  constexpr int kStep = kThreads / kPacks;
  const int channel = (group * kPacks + lane) * W;
  const bool active = channel < pool.channels;
  const T* const image_x = x + image * pool.height * pool.width * pool.channels + channel;
  const T* const image_dy = dy + image * pool.out_height * pool.out_width * pool.channels + channel;

  for (int window = first; active && window < windows; window += kStep) {
    const int out_row = out_rows.first + window / window_columns;
    const int out_column = out_columns.first + window % window_columns;
    const int row = out_row * pool.stride_height - pool.pad_top;
    const int column = out_column * pool.stride_width - pool.pad_left;
    const Maxima<W, T> maxima = find_maxima<K, W>(pool, image_x, row, column);
    places[window * kPacks + lane] = maxima.tap;
    gradients[window * kPacks + lane] =
        load<W>(image_dy + (int64_t(out_row) * pool.out_width + out_column) * pool.channels);
  }
  __syncthreads();

  for (int position = first; active && position < PoolTiles::kRows * PoolTiles::kColumns; position += kStep) {
    const int h = top + position / PoolTiles::kColumns, v = left + position % PoolTiles::kColumns;
    if (h > bottom || v > right) continue;
    const WindowRange rows(h, h, pool.pad_top, pool.span_height(), pool.stride_height, pool.out_height);
    const WindowRange columns(v, v, pool.pad_left, pool.span_width(), pool.stride_width, pool.out_width);
    float sum[W] = {};
    for (int out_row = rows.first; out_row <= rows.last; ++out_row) {
      const int below = h + pool.pad_top - out_row * pool.stride_height;
      if (K == 0 && below % pool.dilation_height != 0) continue;  // the window steps over this position
      const int tap_row = K > 0 ? below : below / pool.dilation_height;
      for (int out_column = columns.first; out_column <= columns.last; ++out_column) {
        const int beside = v + pool.pad_left - out_column * pool.stride_width;
        if (K == 0 && beside % pool.dilation_width != 0) continue;
        const int tap = tap_row * pool.kernel_width + (K > 0 ? beside : beside / pool.dilation_width);
        const int window = (out_row - out_rows.first) * window_columns + out_column - out_columns.first;
        add_where(places[window * kPacks + lane], float(tap), gradients[window * kPacks + lane], sum);
      }
    }
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sum[w]);
    store(dx + ((image * pool.height + h) * pool.width + v) * pool.channels + channel, result);
  }
}

// The gradient where windows share an image out among them, each K × K: a thread takes a window.
template <int K, int W, typename T>
__global__ void __launch_bounds__(kThreads) max_pool_apart_gradient_kernel(Pool pool, const T* dy, const T* x, T* dx) {
  wait_for_dependencies();
  const int packs = pool.channels / W;
  const int64_t count = pool.images * pool.out_height * pool.out_width * packs;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const Position at(i, pool.out_height, pool.out_width, packs);
    const int row = at.row * K, column = at.column * K;
    const int64_t image = at.image * pool.height * pool.width * pool.channels + at.pack * W;
    const Maxima<W, T> maxima = find_maxima<K, W>(pool, x + image, row, column);
    const Pack<T, W> gradient = load<W>(dy + i * W);
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap) {
      float sum[W] = {};
      add_where(maxima.tap, float(tap), gradient, sum);
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(sum[w]);
      store(dx + image + (int64_t(row + tap / K) * pool.width + column + tap % K) * pool.channels, result);
    }
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

}  // namespace arbalest::cuda
