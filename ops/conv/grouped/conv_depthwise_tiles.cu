// SPDX-License-Identifier: Apache-2.0

// A thread has two neighbouring channels of a tile of pixels. It loads each row that the tile sees once and adds it to
// all rows of the result, or of the filter, that it is a part of. What limits such a kernel is memory with 3 × 3
// filters and arithmetic with 7 × 7 ones; loads, additions of addresses and conversions come to less than both.

#include "ops/conv/grouped/conv_depthwise_tiles.h"

#include <algorithm>

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/window.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kChannels = 2;            // of a thread
constexpr int kWide = 8;                // pixels of a tile's row; of the larger image if the stride divides them
constexpr int kMostLanes = 32;          // threads that share a pixel
constexpr int kDepthwiseThreads = 128;  // of a block

struct Extent {
  int height = 0, width = 0;
};

// Images of `from` are read in windows that begin `pad` before the place of a result, and tiles are of `to`.
struct Tiling {
  Extent from, to, pad;
  int channels = 0, lanes = 0, rows = 0;  // rows: tiles of a block
  int across = 0, down = 0, tiles = 0;    // tiles of an image's row and column, and of all images

  // Tiles of `tall` × `wide` pixels, the first of which begins `before` pixels ahead of the image.
  Tiling(const ConvolutionProblem& p, const Shape& source, const Shape& target, Extent padding, int tall, int wide,
         Extent before = {})
      : from{int(source[2]), int(source[3])},
        to{int(target[2]), int(target[3])},
        pad(padding),
        channels(int(p.x[1])),
        across((to.width + before.width + wide - 1) / wide),
        down((to.height + before.height + tall - 1) / tall),
        tiles(int(target[0]) * across * down) {
    const int packs = channels / kChannels, slices = (packs + kMostLanes - 1) / kMostLanes;
    lanes = (packs + slices - 1) / slices;
    rows = kDepthwiseThreads / lanes;
  }
  int slices() const { return (channels / kChannels + lanes - 1) / lanes; }
};

struct DepthwisePlace {
  int image, row, column;  // of tiles
};

__device__ inline DepthwisePlace place_of(const Tiling& t, int tile) {
  const unsigned line = unsigned(tile) / unsigned(t.across), image = line / unsigned(t.down);
  return {int(image), int(line - image * unsigned(t.down)), int(unsigned(tile) - line * unsigned(t.across))};
}

__device__ inline bool is_in(int at, int extent) {
  return unsigned(at) < unsigned(extent);
}

template <typename T>
__device__ inline void store_pair(T* to, float2 value) {
  store(to, Pack<T, kChannels>{{narrow<T>(value.x), narrow<T>(value.y)}});
}
__device__ inline void multiply_add(float2& sum, float2 a, float2 b) {
  sum.x += a.x * b.x;
  sum.y += a.y * b.y;
}

// A thread's channels of a pixel as they lie in memory: one register of bfloat16, two of float.
template <typename T>
using Raw = Word<int(kChannels * sizeof(T))>;

__device__ inline float2 widened(uint32_t pair) {  // of bfloat16, which is the upper half of a float
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
__device__ inline float2 widened(uint2 pair) {
  return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
}

// Columns of neighbouring rows of an image at the channels of the thread, zeros beyond the image. Rows are fetched
// kAhead rows before they are used: few threads fit on a multiprocessor, so that each has to hide what its loads take.
template <int kColumns, int kAhead, typename T>
class RowsAhead {
 public:
  // Row 0 and column 0 may lie before the image.
  __device__ RowsAhead(const T* images, int image, int row, int column, Extent size, int channels, int channel)
      : at_(images + ((int64_t(image) * size.height + row) * size.width + column) * channels + channel),
        pitch_(int64_t(size.width) * channels),
        row_(row),
        height_(size.height),
        channels_(channels) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) there_ |= unsigned(is_in(column + j, size.width)) << j;
#pragma unroll
    for (int r = 0; r < kAhead; ++r) fetch(rows_[r]);
  }

  // Row r, in order; `more`: one is left to be fetched.
  __device__ void take(int r, bool more, float2 (&values)[kColumns]) {
    Row& row = rows_[r % kAhead];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) values[j] = widened(row.value[j]);
    if (more) fetch(row);
  }

 private:
  struct Row {
    Raw<T> value[kColumns];
  };

  __device__ void fetch(Row& row) {
    const unsigned there = is_in(row_, height_) ? there_ : 0;
    const T* pixel = at_;
#pragma unroll
    for (int j = 0; j < kColumns; ++j, pixel += channels_) {
      row.value[j] = Raw<T>{};
      if ((there >> j & 1) != 0) row.value[j] = *reinterpret_cast<const Raw<T>*>(pixel);
    }
    at_ += pitch_;
    ++row_;
  }

  const T* at_;
  const int64_t pitch_;
  int row_;
  const int height_, channels_;
  unsigned there_ = 0;  // a bit for each column
  Row rows_[kAhead];
};

// The slice's filters as floats, (taps, channels of the slice); `flipped`: from the last tap to the first.
template <int kTaps, typename T>
__device__ inline void fetch_filters(float* filters, const Tiling& t, const T* w, bool flipped) {
  const int slice = t.lanes * kChannels, first = int(blockIdx.y) * slice;
  const int in_slice = min(slice, t.channels - first);
  for (int j = int(threadIdx.x); j < in_slice * kTaps; j += kDepthwiseThreads) {
    const int tap = j % kTaps;
    filters[(flipped ? kTaps - 1 - tap : tap) * slice + j / kTaps] = widen(w[int64_t(first) * kTaps + j]);
  }
  __syncthreads();
}

// The thread's tile and first channel; no tile if there is none for it.
struct Share {
  int lane, tile, channel;
  __device__ explicit Share(const Tiling& t)
      : lane(int(threadIdx.x) % t.lanes),
        tile(int(blockIdx.x) * t.rows + int(threadIdx.x) / t.lanes),
        channel((int(blockIdx.y) * t.lanes + lane) * kChannels) {
    if (int(threadIdx.x) >= t.lanes * t.rows || channel >= t.channels) tile = t.tiles;
  }
};

template <int kTall, typename T>
__device__ inline void store_tile(const Tiling& t, const float2 (&sums)[kTall][kWide], int image, int y, int x,
                                  int channel, T* to) {
#pragma unroll
  for (int i = 0; i < kTall; ++i) {
    T* const row = to + ((int64_t(image) * t.to.height + y + i) * t.to.width + x) * t.channels + channel;
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      if (is_in(y + i, t.to.height) && is_in(x + j, t.to.width)) store_pair(row + int64_t(j) * t.channels, sums[i][j]);
    }
  }
}

constexpr int tall(int kernel, int stride) {
  return stride == 2 ? 2 : kernel == 7 ? 3 : 4;
}
constexpr int rows_ahead(int kernel) {
  return kernel == 7 ? 1 : 2;
}
constexpr int blocks_at_once(int kernel) {  // of a multiprocessor: fewer have more registers
  return kernel == 3 ? 4 : 3;
}

// The convolution; with stride 1 also the gradient of images, by flipped filters.
template <int K, int S, typename T>
__global__ void __launch_bounds__(kDepthwiseThreads, blocks_at_once(K))
    depthwise_tiles_kernel(const Tiling t, bool flipped, const T* from, const T* w, const float* bias, T* to) {
  constexpr int kTall = tall(K, S), kRows = (kTall - 1) * S + K, kColumns = (kWide - 1) * S + K;
  __shared__ __align__(8) float filters[K * K * kMostLanes * kChannels];
  fetch_filters<K * K>(filters, t, w, flipped);
  const Share share(t);
  if (share.tile >= t.tiles) return;
  const float2 initial = bias == nullptr ? float2{0, 0} : float2{bias[share.channel], bias[share.channel + 1]};
  const auto* pairs = reinterpret_cast<const float2*>(filters) + share.lane;
  for (int tile = share.tile; tile < t.tiles; tile += int(gridDim.x) * t.rows) {
    const DepthwisePlace place = place_of(t, tile);
    const int y = place.row * kTall, x = place.column * kWide;
    const int first_row = y * S - t.pad.height, first_column = x * S - t.pad.width;
    float2 sums[kTall][kWide];
#pragma unroll
    for (auto& row : sums) {
#pragma unroll
      for (float2& sum : row) sum = initial;
    }
    RowsAhead<kColumns, rows_ahead(K), T> rows(from, place.image, first_row, first_column, t.from, t.channels,
                                               share.channel);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float2 values[kColumns];
      rows.take(r, r + rows_ahead(K) < kRows, values);
#pragma unroll
      for (int i = 0; i < kTall; ++i) {
        const int ky = r - i * S;
        if (ky < 0 || ky >= K) continue;
#pragma unroll
        for (int kx = 0; kx < K; ++kx) {
          const float2 filter = pairs[(ky * K + kx) * t.lanes];
#pragma unroll
          for (int j = 0; j < kWide; ++j) multiply_add(sums[i][j], values[j * S + kx], filter);
        }
      }
    }
    store_tile(t, sums, place.image, y, x, share.channel, to);
  }
}

// The gradient of images with stride 2. Place u = x + pad of a row gets what windows (u − tap) / 2 send, so that of the
// taps every other one counts. Tiles begin at even places.
template <int K, typename T>
__global__ void __launch_bounds__(kDepthwiseThreads, blocks_at_once(K))
    depthwise_spread_kernel(const Tiling t, const T* from, const T* w, T* to) {
  constexpr int kTall = 4, kBefore = (K - 1) / 2, kRows = kTall / 2 + kBefore, kColumns = kWide / 2 + kBefore;
  __shared__ __align__(8) float filters[K * K * kMostLanes * kChannels];
  fetch_filters<K * K>(filters, t, w, false);
  const Share share(t);
  const auto* pairs = reinterpret_cast<const float2*>(filters) + share.lane;
  for (int tile = share.tile; tile < t.tiles; tile += int(gridDim.x) * t.rows) {
    const DepthwisePlace place = place_of(t, tile);
    const int v = (t.pad.height & ~1) + place.row * kTall, u = (t.pad.width & ~1) + place.column * kWide;
    const int first_row = v / 2 - kBefore, first_column = u / 2 - kBefore;
    float2 sums[kTall][kWide] = {};
    RowsAhead<kColumns, 2, T> rows(from, place.image, first_row, first_column, t.from, t.channels, share.channel);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float2 values[kColumns];
      rows.take(r, r + 2 < kRows, values);
#pragma unroll
      for (int i = 0; i < kTall; ++i) {
        const int ky = i - 2 * (r - kBefore);
        if (ky < 0 || ky >= K) continue;
#pragma unroll
        for (int kx = 0; kx < K; ++kx) {
          const float2 filter = pairs[(ky * K + kx) * t.lanes];
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const int j = kx + 2 * (c - kBefore);
            if (j >= 0 && j < kWide) multiply_add(sums[i][j], values[c], filter);
          }
        }
      }
    }
    store_tile(t, sums, place.image, v - t.pad.height, u - t.pad.width, share.channel, to);
  }
}

constexpr int gradient_wide(int kernel) {
  return kernel == 7 ? 4 : kWide;  // registers: each tap has a sum
}
constexpr int kGradientTall = 2;

// Sums for the filters' gradient over every gridDim.x-th group of tiles of dY: partial[block][channel][tap].
template <int K, int S, typename T>
__global__ void __launch_bounds__(kDepthwiseThreads, 3)
    depthwise_filters_kernel(const Tiling t, const T* x, const T* dy, float* partial) {
  constexpr int kAcross = gradient_wide(K), kRows = (kGradientTall - 1) * S + K, kColumns = (kAcross - 1) * S + K;
  __shared__ float2 scratch[2][kDepthwiseThreads];
  const Share share(t);
  float2 sums[K * K] = {};
  const int step = int(gridDim.x) * t.rows;
  for (int tile = share.tile; tile < t.tiles; tile += step) {
    const DepthwisePlace place = place_of(t, tile);
    const int y = place.row * kGradientTall, column = place.column * kAcross;
    RowsAhead<kAcross, kGradientTall, T> of_result(dy, place.image, y, column, t.to, t.channels, share.channel);
    RowsAhead<kColumns, 2, T> rows(x, place.image, y * S - t.pad.height, column * S - t.pad.width, t.from, t.channels,
                                   share.channel);
    float2 gradients[kGradientTall][kAcross];
#pragma unroll
    for (int i = 0; i < kGradientTall; ++i) of_result.take(i, false, gradients[i]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float2 values[kColumns];
      rows.take(r, r + 2 < kRows, values);
#pragma unroll
      for (int i = 0; i < kGradientTall; ++i) {
        const int ky = r - i * S;
        if (ky < 0 || ky >= K) continue;
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
          for (int kx = 0; kx < K; ++kx) multiply_add(sums[ky * K + kx], values[j * S + kx], gradients[i][j]);
        }
      }
    }
  }
  const int threads = t.lanes * t.rows, here = int(threadIdx.x);
#pragma unroll
  for (int tap = 0; tap < K * K; ++tap) {
    scratch[tap % 2][here] = sums[tap];
    __syncthreads();
    if (here >= t.lanes || share.channel >= t.channels) continue;
    float2 total = {0, 0};
    for (int other = here; other < threads; other += t.lanes) {
      total.x += scratch[tap % 2][other].x;
      total.y += scratch[tap % 2][other].y;
    }
    float* const at = partial + (int64_t(blockIdx.x) * t.channels + share.channel) * (K * K) + tap;
    at[0] = total.x;
    at[K * K] = total.y;
  }
}

constexpr int kTotalsAcross = 32, kTotalsDown = 8;

template <typename Out>
__global__ void __launch_bounds__(kTotalsAcross* kTotalsDown)
    depthwise_tile_totals_kernel(int count, int chunks, const float* partial, Out* dw) {
  __shared__ float scratch[kTotalsDown][kTotalsAcross];
  const int across = int(threadIdx.x) % kTotalsAcross, down = int(threadIdx.x) / kTotalsAcross;
  const int i = int(blockIdx.x) * kTotalsAcross + across;
  float sum = 0;
  if (i < count) {
#pragma unroll 4
    for (int chunk = down; chunk < chunks; chunk += kTotalsDown) sum += partial[int64_t(chunk) * count + i];
  }
  scratch[down][across] = sum;
  __syncthreads();
  if (down > 0 || i >= count) return;
  for (int other = 1; other < kTotalsDown; ++other) sum += scratch[other][across];
  dw[i] = narrow<Out>(sum);
}

int extent_of(const ConvolutionProblem& p) {
  return int(p.w[2]);
}
Extent padding(const ConvolutionProblem& p) {
  return {int(p.pad_begin[0]), int(p.pad_begin[1])};
}

Tiling gradient_tiling(const ConvolutionProblem& p) {
  return {p, p.x, p.y, padding(p), kGradientTall, gradient_wide(extent_of(p))};
}

// Blocks that a device holds at once, so many on a multiprocessor, divided among the slices, as far as there are tiles.
int blocks_of(const Tiling& t, int multiprocessors, int at_once) {
  const int wanted = std::max(1, multiprocessors * at_once / t.slices());
  return std::clamp((t.tiles + t.rows - 1) / t.rows, 1, wanted);
}
int gradient_blocks(const Tiling& t, int multiprocessors) {
  return blocks_of(t, multiprocessors, 3);
}

// function(K, S)
template <typename Function>
void with_form(const ConvolutionProblem& p, Function function) {
  const auto with_stride = [&](auto kernel) {
    if (p.stride[0] == 1) {
      function(kernel, std::integral_constant<int, 1>{});
    } else {
      function(kernel, std::integral_constant<int, 2>{});
    }
  };
  switch (extent_of(p)) {
    case 3: return with_stride(std::integral_constant<int, 3>{});
    case 5: return with_stride(std::integral_constant<int, 5>{});
    default: return with_stride(std::integral_constant<int, 7>{});
  }
}

dim3 grid_of(const Tiling& t, int blocks) {
  return dim3(unsigned(blocks), unsigned(t.slices()));
}

template <typename T>
void run_filters(const ConvolutionProblem& p, int multiprocessors, cudaStream_t stream, const T* x, const T* dy,
                 void* dw, float* partial) {
  const Tiling t = gradient_tiling(p);
  const int blocks = gradient_blocks(t, multiprocessors), count = int(element_count(p.w));
  with_form(p, [&](auto kernel, auto stride) {
    depthwise_filters_kernel<kernel.value, stride.value>
        <<<grid_of(t, blocks), kDepthwiseThreads, 0, stream>>>(t, x, dy, partial);
  });
  check_launch("depthwise gradient of filters");
  const unsigned groups = unsigned((count + kTotalsAcross - 1) / kTotalsAcross);
  const auto sum_up = [&](auto* result) {
    depthwise_tile_totals_kernel<<<groups, kTotalsAcross * kTotalsDown, 0, stream>>>(count, blocks, partial, result);
  };
  if (p.output_type == DataType::Float32) {
    sum_up(static_cast<float*>(dw));
  } else {
    sum_up(static_cast<__nv_bfloat16*>(dw));
  }
  check_launch("depthwise gradient of filters: totals");
}

template <typename T>
void run_depthwise_tiles(const ConvolutionProblem& p, const ConvolutionCall& call) {
  const T *a = static_cast<const T*>(call.a), *b = static_cast<const T*>(call.b);
  const int multiprocessors = call.multiprocessors;
  const cudaStream_t stream = call.stream;
  if (p.kind == Kind::GradWeight) {
    return run_filters(p, multiprocessors, stream, a, b, call.result, static_cast<float*>(call.workspace));
  }
  auto* const to = static_cast<T*>(call.result);
  const bool gradient = p.kind == Kind::GradInput;
  with_form(p, [&](auto kernel, auto stride) {
    constexpr int K = kernel.value, S = stride.value;
    if (gradient && S == 2) {
      const Extent pad = padding(p);
      const Tiling t(p, p.y, p.x, pad, 4, kWide, {pad.height & 1, pad.width & 1});
      depthwise_spread_kernel<K>
          <<<grid_of(t, blocks_of(t, multiprocessors, blocks_at_once(K))), kDepthwiseThreads, 0, stream>>>(t, a, b, to);
    } else {
      const Extent pad = gradient ? Extent{K - 1 - padding(p).height, K - 1 - padding(p).width} : padding(p);
      const Tiling t(p, gradient ? p.y : p.x, gradient ? p.x : p.y, pad, tall(K, S), kWide);
      depthwise_tiles_kernel<K, S>
          <<<grid_of(t, blocks_of(t, multiprocessors, blocks_at_once(K))), kDepthwiseThreads, 0, stream>>>(
              t, gradient, a, b, call.bias, to);
    }
  });
  check_launch("depthwise convolution");
}

}  // namespace

bool is_tiled_depthwise(const ConvolutionProblem& p) {
  if (p.x.size() != 4 || p.w[1] != 1 || p.w[0] != p.x[1] || p.x[1] % kChannels != 0) return false;
  const int64_t extent = p.w[2];
  const bool known = extent == p.w[3] && (extent == 3 || extent == 5 || extent == 7) &&
                     (all_are(p.stride, 1) || all_are(p.stride, 2)) && all_are(p.dilation, 1);
  if (!known) return false;
  for (const auto* pads : {&p.pad_begin, &p.pad_end}) {
    for (const int64_t pad : *pads) {
      if (pad < 0 || pad >= extent) return false;
    }
  }
  // Tiles, and groups of them, are counted in 32 bits.
  const auto tiles = [](const Shape& image) { return image[0] * (image[2] + 4) * (image[3] + 8) / 8; };
  return std::max(tiles(p.x), tiles(p.y)) < int64_t{1} << 30 && p.x[1] < int64_t{1} << 20;
}

int64_t tiled_depthwise_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  return gradient_blocks(gradient_tiling(problem), multiprocessors) * element_count(problem.w) * int64_t(sizeof(float));
}

void run_tiled_depthwise(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  require_alignment("depthwise convolution", {call.a, call.b, call.result});
  if (problem.type == DataType::Float32) {
    run_depthwise_tiles<float>(problem, call);
  } else {
    run_depthwise_tiles<__nv_bfloat16>(problem, call);
  }
}

}  // namespace arbalest
