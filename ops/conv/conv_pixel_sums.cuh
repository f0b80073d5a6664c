// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernel of conv_pixel_sums.h: dW = dYᵀ X of matrices (pixels, channels). Both operands are copied as they lie, a
// batch of pixels after the other, and matrix units read them turned. Blocks share the pixels and leave partial sums.

#include <algorithm>
#include <type_traits>

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/matrix_unit.cuh"

namespace arbalest::cuda {

// How pixels are shared out: a block takes `share` of them, the last one fewer.
struct PixelShares {
  int64_t pixels = 0;
  int64_t share = 0;        // a multiple of kPixelBatch
  int made = 0, taken = 0;  // channels of dY and of X
  int shares = 0;
};

inline constexpr int kPixelBatch = 64;  // pixels that are copied together

// A block has Rows channels of dY by Columns of X; a warp up to 64 by 32.
template <int RowsOf, int ColumnsOf>
struct PixelTile {
  static constexpr int kRows = RowsOf, kColumns = ColumnsOf;
  static constexpr int kWarpRows = kRows == 64 ? 32 : 64, kWarpColumns = 32;
  static constexpr int kDown = kRows / kWarpRows, kAcross = kColumns / kWarpColumns;  // warps
  static constexpr int kThreadsOf = 32 * kDown * kAcross;
  // Bytes of a pixel in shared memory, so that its neighbours lie in different banks; of a batch; of all of them.
  static constexpr int kRowsPitch = kRows * 2 + 16, kColumnsPitch = kColumns * 2 + 16;
  static constexpr int kBatchBytes = kPixelBatch * (kRowsPitch + kColumnsPitch);
  static constexpr int kBatches = kRows + kColumns > 192 ? 3 : 4;  // so that a multiprocessor has two blocks
  static constexpr int kSharedBytes = kBatches * kBatchBytes;
};

// Starts copying Width channels, from `first` on, of the pixels of a batch, in words of Word bytes; zeros where there
// are none.
template <int Width, int Word, int Threads>
__device__ void copy_pixels(const __nv_bfloat16* from, int64_t begin, int64_t end, int channels, int first,
                            unsigned char* to) {
  constexpr int kEach = Word / 2, kWords = Width / kEach, kPitch = Width * 2 + 16;
  for (int i = int(threadIdx.x); i < kPixelBatch * kWords; i += Threads) {
    const int pixel = i / kWords, word = i % kWords, channel = first + word * kEach;
    const bool there = begin + pixel < end && channel < channels;
    const __nv_bfloat16* const source = there ? from + (begin + pixel) * channels + channel : from;
    if constexpr (Word == 16) {
      copy_async(to + pixel * kPitch + word * Word, source, there);
    } else {
      copy_word_async(to + pixel * kPitch + word * Word, source, there);
    }
  }
}

// Partial sums (shares, made, taken), of the share block.y. block.x: the tile, first by channels of dY.
template <int Rows, int Columns, int Word>
__global__ void __launch_bounds__(PixelTile<Rows, Columns>::kThreadsOf)
    pixel_sums_kernel(PixelShares s, const __nv_bfloat16* x, const __nv_bfloat16* dy, float* partials) {
  using Tile = PixelTile<Rows, Columns>;
  constexpr int kM = Tile::kWarpRows / 16, kN = Tile::kWarpColumns / 8;
  unsigned char* const batches = dynamic_shared();
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, matrix = lane / 8;
  const int tiles_down = (s.made + Rows - 1) / Rows;
  const int first_row = int(blockIdx.x) % tiles_down * Rows, first_column = int(blockIdx.x) / tiles_down * Columns;
  const int row = warp % Tile::kDown * Tile::kWarpRows, column = warp / Tile::kDown * Tile::kWarpColumns;
  const int64_t begin = int64_t{blockIdx.y} * s.share, end = min(begin + s.share, s.pixels);
  const int count = int((end - begin + kPixelBatch - 1) / kPixelBatch);

  const auto copy = [&](int batch) {
    if (batch < count) {
      unsigned char* const to = batches + batch % Tile::kBatches * Tile::kBatchBytes;
      const int64_t at = begin + int64_t{batch} * kPixelBatch;
      copy_pixels<Rows, Word, Tile::kThreadsOf>(dy, at, end, s.made, first_row, to);
      copy_pixels<Columns, Word, Tile::kThreadsOf>(x, at, end, s.taken, first_column,
                                                   to + kPixelBatch * Tile::kRowsPitch);
    }
    commit_copies();
  };
  wait_for_dependencies();
#pragma unroll
  for (int batch = 0; batch < Tile::kBatches - 1; ++batch) copy(batch);

  // Bytes from a batch to the lane's rows of four matrices of 8 × 8, whose rows are pixels.
  const uint32_t rows_place = uint32_t((matrix / 2 * 8 + lane % 8) * Tile::kRowsPitch + (row + matrix % 2 * 8) * 2);
  const uint32_t columns_place =
      uint32_t(kPixelBatch * Tile::kRowsPitch + (matrix % 2 * 8 + lane % 8) * Tile::kColumnsPitch +
               (column + matrix / 2 * 8) * 2);
  float sum[kM][kN][4] = {};
  for (int batch = 0; batch < count; ++batch) {
    wait_for_copies<Tile::kBatches - 2>();
    __syncthreads();  // the batch is there, and the one before is read
    copy(batch + Tile::kBatches - 1);
    const uint32_t at = shared_address(batches + batch % Tile::kBatches * Tile::kBatchBytes);
#pragma unroll
    for (int pixel = 0; pixel < kPixelBatch; pixel += 16) {
      uint32_t a[kM][4], b[kN / 2][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        load_matrices_transposed(a[m], at + rows_place + uint32_t(pixel * Tile::kRowsPitch + m * 32));
      }
#pragma unroll
      for (int n = 0; n < kN / 2; ++n) {
        load_matrices_transposed(b[n], at + columns_place + uint32_t(pixel * Tile::kColumnsPitch + n * 32));
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) multiply(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }

  float* const out = partials + int64_t{blockIdx.y} * s.made * s.taken;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int to = first_row + row + m * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int from = first_column + column + n * 8 + lane % 4 * 2;
        if (to >= s.made || from >= s.taken) continue;
        *reinterpret_cast<float2*>(out + int64_t{to} * s.taken + from) =
            make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
      }
    }
  }
}

// function(tile, integral_constant<int, bytes of a word>) for so many channels.
template <typename Function>
auto with_pixel_tile(int64_t made, int64_t taken, Function function) {
  const auto with_word = [&](auto tile) {
    return made % 8 == 0 && taken % 8 == 0 ? function(tile, std::integral_constant<int, 16>{})
                                           : function(tile, std::integral_constant<int, 4>{});
  };
  if (made <= 64) return taken <= 64 ? with_word(PixelTile<64, 64>{}) : with_word(PixelTile<64, 128>{});
  return taken <= 64 ? with_word(PixelTile<128, 64>{}) : with_word(PixelTile<128, 128>{});
}

inline constexpr int64_t kFewestPixels = 4 * kPixelBatch;  // of a share

// The fewest shares that give each multiprocessor two blocks, and each block a few batches.
template <typename Tile>
PixelShares pixel_shares(int64_t pixels, int64_t made, int64_t taken, int multiprocessors) {
  const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  const int64_t tiles = parts(made, Tile::kRows) * parts(taken, Tile::kColumns);
  const int64_t batches = parts(pixels, kPixelBatch), wanted = std::max<int64_t>(1, 2 * multiprocessors / tiles);
  PixelShares s{.pixels = pixels, .made = int(made), .taken = int(taken)};
  s.share = std::max(kFewestPixels, parts(batches, wanted) * kPixelBatch);
  s.shares = int(parts(pixels, s.share));
  return s;
}

// Blocks: tiles, and shares of the pixels.
template <typename Tile>
dim3 pixel_grid(const PixelShares& s) {
  const int down = (s.made + Tile::kRows - 1) / Tile::kRows, across = (s.taken + Tile::kColumns - 1) / Tile::kColumns;
  return dim3(unsigned(down * across), unsigned(s.shares));
}

}  // namespace arbalest::cuda
