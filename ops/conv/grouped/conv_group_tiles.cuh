// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of conv_group_tiles.h. A block has the filter of one set of groups, and windows of the image's channels of
// that set, in shared memory. Matrix units multiply straight from there: 16 pixels by the channels of a group, or, for
// the filter's gradient, 16 of the filter's rows by them. What is summed over, or the rows, are *chunks* of eight
// channels at a tap. Two chunks make a matrix's side of 16; they may be of two taps, so that no channel is padded.
// Images are bfloat16 (N,H,W,C), filters (C,3,3,C/g).
//
// The gradient of images of a convolution with stride 2 is four convolutions with stride 1 of dY, one for each parity
// of rows and of columns of dX: each has those taps that meet such pixels, one, two or four.

#include <algorithm>

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest::cuda {

inline constexpr int kGroupTaps = 9;
inline constexpr int kGroupTilePixels = 256;  // of a tile, at most

// Forward: Y from X. Gradient: dX from dY, stride 1. StridedGradient: the same, stride 2.
enum class GroupWay : uint8_t { Forward, Gradient, StridedGradient };

// Threads of a block whose warps have one of the set's groups and M · 16 pixels each.
template <int Groups, int M>
inline constexpr int kGroupThreads = (kGroupTilePixels / 16 / M) * (32 * Groups);

// A tile is whole rows of what the kernel makes, or whole images if several fit; a block takes `tiles_per_block` tiles
// that follow each other. Its window is what the tile reads of the image, zeros outside of it.
struct GroupTiling {
  int images = 0, channels = 0, group = 0;  // group: channels of one
  int height = 0, width = 0;                // of the image that windows are of
  int out_height = 0, out_width = 0;        // of the image that tiles are of
  // The image that a gradient with stride 2 makes, and what padded it.
  int made_height = 0, made_width = 0, made_pad[2] = {0, 0};
  int stride[2] = {1, 1}, dilation[2] = {1, 1}, pad[2] = {0, 0};  // rows, columns
  int rows = 0, tile_images = 1;                                  // of a tile
  int tiles_per_image = 1, tiles = 0, tiles_per_block = 1, blocks = 0;
  int window_rows = 0, window_columns = 0;

  __host__ __device__ int window_pixels() const { return tile_images * window_rows * window_columns; }
  __device__ int first_image(int tile) const { return tile / tiles_per_image * tile_images; }
  __device__ int first_row(int tile) const { return tile % tiles_per_image * rows; }
  // The place of a tile's first pixel among those of all images, and how many pixels the tile has.
  __device__ int64_t first_pixel(int tile) const {
    return (int64_t{first_image(tile)} * out_height + first_row(tile)) * out_width;
  }
  __device__ int pixels(int tile) const {
    return min(tile_images, images - first_image(tile)) * min(rows, out_height - first_row(tile)) * out_width;
  }
  // The pixel of a tile in the image that is made, which has twice as many rows and columns; −1: it has no such pixel.
  __device__ int64_t made_pixel(int tile, int pixel, const int (&parity)[2]) const {
    const int row = pixel / out_width, image = row / rows;
    const int y = 2 * (first_row(tile) + row - image * rows) + parity[0], x = 2 * (pixel - row * out_width) + parity[1];
    return y < made_height && x < made_width ? (int64_t{first_image(tile) + image} * made_height + y) * made_width + x
                                             : -1;
  }
  // The place of a pixel's first tap in the window. Pixels past the tile's end get that of the last one.
  __device__ int place(int pixel) const {
    pixel = min(pixel, tile_images * rows * out_width - 1);
    const int row = pixel / out_width, column = pixel - row * out_width, image = row / rows;
    return (image * window_rows + (row - image * rows) * stride[0]) * window_columns + column * stride[1];
  }
};

// Channels of a group are Width · 8, or half of that, if two groups are joined; a set has Groups of them.
template <int Width, int Groups>
struct GroupSet {
  static constexpr int kChunks = Groups * Width;     // of a pixel
  static constexpr int kPitch = (kChunks | 1) * 16;  // bytes of a pixel in shared memory: rows in different banks
  static constexpr int kChannels = kChunks * 8;
  static constexpr int kRow = kGroupTaps * Width;       // chunks of a filter's row
  static constexpr int kSteps = (kRow + 1) / 2;         // of two chunks
  static constexpr int kFilterPitch = (kRow | 1) * 16;  // bytes
  static constexpr int kFilterBytes = kChannels * kFilterPitch;
};

// Starts copying a tile's window of the set's channels, from x's on.
template <typename Set>
__device__ void copy_window(const GroupTiling& t, int tile, const __nv_bfloat16* x, unsigned char* window) {
  const int each = int(blockDim.x) / Set::kChunks;  // pixels at a time
  const int chunk = int(threadIdx.x) % Set::kChunks;
  int pixel = int(threadIdx.x) / Set::kChunks;
  if (pixel >= each) return;
  const int step_rows = each / t.window_columns, step_columns = each - step_rows * t.window_columns;
  int row = pixel / t.window_columns, column = pixel - row * t.window_columns;
  const int first_image = t.first_image(tile), top = t.first_row(tile) * t.stride[0] - t.pad[0];
  int image = row / t.window_rows;
  row -= image * t.window_rows;
  for (const int pixels = t.window_pixels(); pixel < pixels; pixel += each) {
    const int y = top + row, at = column - t.pad[1];
    const bool there =
        unsigned(y) < unsigned(t.height) && unsigned(at) < unsigned(t.width) && first_image + image < t.images;
    const int64_t from = (int64_t{first_image + image} * t.height + y) * t.width + at;
    copy_async(window + pixel * Set::kPitch + chunk * 16, there ? x + from * t.channels + chunk * 8 : x, there);
    column += step_columns;
    row += step_rows;
    if (column >= t.window_columns) {
      column -= t.window_columns;
      ++row;
    }
    while (row >= t.window_rows) {
      row -= t.window_rows;
      ++image;
    }
  }
}

// The bytes from a pixel's place to a chunk of a group's first channels in the window. A gradient has taps from the
// last.
template <typename Set, int Width, GroupWay Way>
__device__ uint32_t chunk_offset(const GroupTiling& t, int chunk) {
  const int tap = chunk / Width, at = Way == GroupWay::Gradient ? kGroupTaps - 1 - tap : tap;
  const int pixels = at / 3 * t.dilation[0] * t.window_columns + at % 3 * t.dilation[1];
  return uint32_t(pixels * Set::kPitch + chunk % Width * 16);
}

// The taps of a filter's side that meet pixels of a parity, of a gradient with stride 2, and the first row (or column)
// of dY that they meet, seen from the window's.
struct ParityTaps {
  int first, count;  // every second one

  __device__ ParityTaps(int parity, int pad) : first((parity + pad) % 2), count(2 - first) {}
  __device__ int tap(int i) const { return first + 2 * i; }
  // pad − tap + parity is even; the window begins where the last tap of the lower parity is.
  __device__ static int place(int parity, int pad, int tap) { return (parity + pad - tap + 2) / 2 - (pad + 1) / 2; }
};

// Copies the set's filters, from w's on, as rows of chunks. Of two joined groups, each row is zero at the other group's
// channels.
template <typename Set>
__device__ void copy_filters(const GroupTiling& t, const __nv_bfloat16* w, unsigned char* filter) {
  for (int i = int(threadIdx.x); i < Set::kChannels * Set::kRow; i += int(blockDim.x)) {
    const int row = i / Set::kRow, chunk = i - row * Set::kRow;
    unsigned char* const to = filter + row * Set::kFilterPitch + chunk * 16;
    if (t.group % 8 == 0) {
      copy_async(to, w + i * 8, true);
    } else {
      const uint2 own = *reinterpret_cast<const uint2*>(w + i * 4);
      const bool second = row / 4 % 2 != 0;
      *reinterpret_cast<uint4*>(to) = second ? uint4{0, 0, own.x, own.y} : uint4{own.x, own.y, 0, 0};
    }
  }
}

// y = x ∗ w for the set block.y; a gradient: dX of the convolution with the filter w, from dY as x, if strided for the
// parities block.z. Each warp has one group and M · 16 pixels. Dynamic shared memory: the filter, then a window, or two
// if a block has several tiles.
template <int Width, int Groups, int M, GroupWay Way>
__global__ void __launch_bounds__(kGroupThreads<Groups, M>)
    group_convolution_kernel(GroupTiling t, const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y) {
  using Set = GroupSet<Width, Groups>;
  constexpr bool kGradient = Way != GroupWay::Forward, kStrided = Way == GroupWay::StridedGradient;
  unsigned char* const group_memory = dynamic_shared();
  __shared__ uint2 offsets[2 * Set::kSteps];  // of each chunk, in the window and, for a gradient, in the filter
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, own = warp % Groups, along = warp / Groups;
  const int channel = int(blockIdx.y) * Set::kChannels;  // the set's first
  const int first_tile = int(blockIdx.x) * t.tiles_per_block;
  const int last_tile = min(first_tile + t.tiles_per_block, t.tiles);
  unsigned char* const windows = group_memory + Set::kFilterBytes;
  const int window_bytes = t.window_pixels() * Set::kPitch;

  const int parity[2] = {int(blockIdx.z) / 2, int(blockIdx.z) % 2};
  const ParityTaps rows(parity[0], t.made_pad[0]), columns(parity[1], t.made_pad[1]);
  const int chunks = kStrided ? rows.count * columns.count * Width : Set::kRow;
  const int steps = kStrided ? (chunks + 1) / 2 : Set::kSteps;
  for (int i = int(threadIdx.x); i < 2 * steps; i += int(blockDim.x)) {
    const int chunk = min(i, chunks - 1);
    uint32_t in_window = chunk_offset<Set, Width, Way>(t, chunk);
    int tap = chunk / Width;
    if constexpr (kStrided) {
      const int row = rows.tap(tap / columns.count), column = columns.tap(tap % columns.count);
      const int pixels = ParityTaps::place(parity[0], t.made_pad[0], row) * t.window_columns +
                         ParityTaps::place(parity[1], t.made_pad[1], column);
      in_window = uint32_t(pixels * Set::kPitch + chunk % Width * 16);
      tap = row * 3 + column;
    }
    offsets[i] = make_uint2(in_window, uint32_t(chunk % Width * 8 * Set::kFilterPitch + tap * Width * 16));
  }
  uint32_t place[M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
    place[m] = uint32_t(t.place((along * M + m) * 16 + lane % 16) * Set::kPitch + own * Width * 16);
  }
  wait_for_dependencies();
  copy_window<Set>(t, first_tile, x + channel, windows);
  copy_filters<Set>(t, w + int64_t{channel} * kGroupTaps * t.group, group_memory);
  commit_copies();

  const int matrix = lane / 8;
  uint32_t filter_place = shared_address(group_memory) + uint32_t(own * Width * 8 * Set::kFilterPitch);
  filter_place += uint32_t(lane % 8 * Set::kFilterPitch + (kGradient ? 0 : matrix % 2 * 16));
  const uint32_t second = uint32_t(matrix / 2 * (kGradient ? 16 : 8 * Set::kFilterPitch));  // of two tiles of channels
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int buffer = (tile - first_tile) % 2;
    if (tile + 1 < last_tile) copy_window<Set>(t, tile + 1, x + channel, windows + (1 - buffer) * window_bytes);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int pixels = t.pixels(tile);
    if (along * M * 16 < pixels) {
      float sum[M][Width][4] = {};
      const uint32_t window = shared_address(windows + buffer * window_bytes);
#pragma unroll 3
      for (int step = 0; step < steps; ++step) {
        const uint32_t shift = window + offsets[2 * step + lane / 16].x;
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) load_matrices(a[m], place[m] + shift);
        const uint32_t filter = filter_place + (kGradient ? offsets[2 * step + matrix % 2].y : uint32_t(step * 32));
#pragma unroll
        for (int j = 0; j < Width; j += 2) {
          uint32_t b[4];
          const uint32_t at = filter + (j + 1 < Width ? second : 0);
          if constexpr (kGradient) {
            load_matrices_transposed(b, at + j * 16);
          } else {
            load_matrices(b, at + j * 8 * Set::kFilterPitch);
          }
          if (Width % 2 != 0 && 2 * step + 1 == chunks) b[1] = b[3] = 0;  // there is no second chunk
#pragma unroll
          for (int m = 0; m < M; ++m) {
            multiply(sum[m][j], a[m], b[0], b[1]);
            if (j + 1 < Width) multiply(sum[m][j + 1], a[m], b[2], b[3]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int pixel = (along * M + m) * 16 + half * 8 + lane / 4;
          const int64_t made = kStrided ? t.made_pixel(tile, pixel, parity) : t.first_pixel(tile) + pixel;
          if (pixel >= pixels || made < 0) continue;
          __nv_bfloat16* const to = y + made * t.channels + channel + own * Width * 8 + lane % 4 * 2;
#pragma unroll
          for (int j = 0; j < Width; ++j) {
            *reinterpret_cast<__nv_bfloat162*>(to + j * 8) =
                __floats2bfloat162_rn(sum[m][j][half * 2], sum[m][j][half * 2 + 1]);
          }
        }
      }
    }
    __syncthreads();  // the buffer is free
  }
}

// How warps of a block share the filter's gradient: first they divide its rows by Splits, then the pixels.
template <int Width, int Groups, int Splits>
struct GroupGradient {
  using Set = GroupSet<Width, Groups>;
  static constexpr int kOwn = (Set::kSteps + Splits - 1) / Splits;       // matrices of 16 rows of a warp
  static constexpr int kShares = kThreads / 32 / (Groups * Splits);      // of a tile's pixels
  static constexpr int kSums = kOwn * Width * 4;                         // of a thread
  static constexpr int kGradientBytes = kGroupTilePixels * Set::kPitch;  // of a tile of dY
  static int shared_bytes(const GroupTiling& t) {
    const int tile = t.window_pixels() * Set::kPitch + kGradientBytes;
    return std::max((t.tiles_per_block > 1 ? 2 : 1) * tile, (kShares - 1) * Groups * Splits * kSums * 32 * 4);
  }
};

// Partial sums of dW: (blocks, C, 9, C/g), of each block's tiles, for the set block.y. Dynamic shared memory: windows
// of X, tiles of dY, two of each if a block has several tiles; later sums of the warps that share rows.
template <int Width, int Groups, int Splits>
__global__ void __launch_bounds__(kThreads)
    group_filter_gradient_kernel(GroupTiling t, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* partials) {
  using Set = GroupSet<Width, Groups>;
  using Form = GroupGradient<Width, Groups, Splits>;
  unsigned char* const group_memory = dynamic_shared();
  __shared__ uint32_t places[kGroupTilePixels];  // of pixels in the window, bytes
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int own = warp % Groups, split = warp / Groups % Splits, share = warp / Groups / Splits;
  const int channel = int(blockIdx.y) * Set::kChannels;
  const int first_tile = int(blockIdx.x) * t.tiles_per_block;
  const int last_tile = min(first_tile + t.tiles_per_block, t.tiles);
  const int window_bytes = t.window_pixels() * Set::kPitch;
  unsigned char* const gradients = group_memory + (t.tiles_per_block > 1 ? 2 : 1) * window_bytes;

  const auto copy = [&](int tile, int buffer) {
    copy_window<Set>(t, tile, x + channel, group_memory + buffer * window_bytes);
    const int pixels = t.pixels(tile), padded = (pixels + 15) / 16 * 16;
    const __nv_bfloat16* const from = dy + t.first_pixel(tile) * t.channels + channel;
    unsigned char* const to = gradients + buffer * Form::kGradientBytes;
    for (int i = int(threadIdx.x); i < padded * Set::kChunks; i += int(blockDim.x)) {
      const int pixel = i / Set::kChunks, chunk = i - pixel * Set::kChunks;
      const bool there = pixel < pixels;
      copy_async(to + pixel * Set::kPitch + chunk * 16, there ? from + int64_t{pixel} * t.channels + chunk * 8 : from,
                 there);
    }
  };
  for (int i = int(threadIdx.x); i < kGroupTilePixels; i += int(blockDim.x)) {
    places[i] = uint32_t(t.place(i) * Set::kPitch);
  }
  wait_for_dependencies();
  copy(first_tile, 0);
  commit_copies();

  const int matrix = lane / 8;
  uint32_t offset[Form::kOwn];
#pragma unroll
  for (int i = 0; i < Form::kOwn; ++i) {
    const int chunk = min((split * Form::kOwn + i) * 2 + matrix % 2, Set::kRow - 1);
    offset[i] = chunk_offset<Set, Width, GroupWay::Forward>(t, chunk) + uint32_t(own * Width * 16);
  }
  const uint32_t gradient_place = uint32_t((matrix % 2 * 8 + lane % 8) * Set::kPitch + own * Width * 16);
  float sum[Form::kOwn][Width][4] = {};
  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int buffer = (tile - first_tile) % 2;
    if (tile + 1 < last_tile) copy(tile + 1, 1 - buffer);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const uint32_t window = shared_address(group_memory + buffer * window_bytes);
    const uint32_t gradient = shared_address(gradients + buffer * Form::kGradientBytes) + gradient_place;
    for (int begin = share * 16; begin < t.pixels(tile); begin += Form::kShares * 16) {
      const uint32_t place = window + places[begin + lane / 16 * 8 + lane % 8];
      uint32_t b[(Width + 1) / 2][4];
#pragma unroll
      for (int j = 0; j < Width; j += 2) {
        const int second = j + 1 < Width ? matrix / 2 * 16 : 0;  // of two tiles of channels
        load_matrices_transposed(b[j / 2], gradient + uint32_t(begin * Set::kPitch + j * 16 + second));
      }
#pragma unroll
      for (int i = 0; i < Form::kOwn; ++i) {
        if (split * Form::kOwn + i >= Set::kSteps) break;
        uint32_t a[4];
        load_matrices_transposed(a, place + offset[i]);
#pragma unroll
        for (int j = 0; j < Width; ++j) multiply(sum[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
    __syncthreads();
  }

  // Shares of the same rows are added up in order.
  if constexpr (Form::kShares > 1) {
    auto* const sums = reinterpret_cast<float*>(group_memory);
    constexpr int kWarps = Groups * Splits;
    const auto at = [&](int s, int i) { return (((s - 1) * kWarps + warp % kWarps) * Form::kSums + i) * 32 + lane; };
    if (share > 0) {
#pragma unroll
      for (int i = 0; i < Form::kSums; ++i) sums[at(share, i)] = sum[i / 4 / Width][i / 4 % Width][i % 4];
    }
    __syncthreads();
    if (share > 0) return;
#pragma unroll
    for (int i = 0; i < Form::kSums; ++i) {
#pragma unroll
      for (int s = 1; s < Form::kShares; ++s) sum[i / 4 / Width][i / 4 % Width][i % 4] += sums[at(s, i)];
    }
  }
  float* const out = partials + int64_t{blockIdx.x} * t.channels * kGroupTaps * t.group;
#pragma unroll
  for (int i = 0; i < Form::kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < Width; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int chunk = (split * Form::kOwn + i) * 2 + r / 2, tap = chunk / Width;
        const int from = chunk % Width * 8 + lane / 4, to = j * 8 + lane % 4 * 2 + r % 2;  // channels of the group
        if (chunk >= Set::kRow || from / t.group != to / t.group) continue;
        const int row = channel + own * Width * 8 + to;
        out[(int64_t{row} * kGroupTaps + tap) * t.group + from % t.group] = sum[i][j][r];
      }
    }
  }
}

}  // namespace arbalest::cuda
