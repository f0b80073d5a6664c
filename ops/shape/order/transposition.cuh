// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernels that transpose matrices, in whatever order they lie: whole lines of both tensors, through shared memory.

#include <type_traits>

#include "ops/shape/order/planes.cuh"
#include "ops/words.h"

namespace arbalest::cuda {

inline constexpr int kTile = 32;  // words of a tile's row

// Which tile of which matrix a block takes.
struct TransposedTile {
  int64_t row, column;  // of its first element
  int64_t from, to;     // the matrix in x and in y

  __device__ TransposedTile(const Transposition& t, int64_t index, int64_t side) {
    const int64_t row_tiles = (t.rows + side - 1) / side, column_tiles = (t.columns + side - 1) / side;
    const int64_t matrix = index / (row_tiles * column_tiles), within = index % (row_tiles * column_tiles);
    row = within / column_tiles * side;
    column = within % column_tiles * side;
    from = t.matrices.offset(matrix, 1);
    to = t.matrices.offset(matrix, 0);
  }
};

// A block of 32 × 8 threads takes tiles of 32 × 32.
template <typename Word>
__global__ void __launch_bounds__(kThreads) transpose_kernel(Transposition t, int64_t tiles, const Word* x, Word* y) {
  wait_for_dependencies();
  __shared__ Word tile[kTile][kTile + 1];
  const int tx = int(threadIdx.x) % kTile, ty = int(threadIdx.x) / kTile;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TransposedTile at(t, i, kTile);
    const Word* from = x + at.from + at.row * t.from_step + at.column;
    Word* to = y + at.to + at.column * t.to_step + at.row;
    const int64_t rows = t.rows - at.row, columns = t.columns - at.column;
#pragma unroll
    for (int k = ty; k < kTile; k += kThreads / kTile) {
      if (k < rows && tx < columns) tile[k][tx] = from[k * t.from_step + tx];
    }
    __syncthreads();
#pragma unroll
    for (int k = ty; k < kTile; k += kThreads / kTile) {
      if (k < columns && tx < rows) to[k * t.to_step + tx] = tile[tx][k];
    }
    __syncthreads();
  }
}

// The same for elements of two bytes, two neighbours at a time: tiles of 64 × 64.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    transpose_pairs_kernel(Transposition t, int64_t tiles, const Word* x, Word* y) {
  static_assert(sizeof(Word) == 2);
  wait_for_dependencies();
  __shared__ uint32_t tile[2 * kTile][kTile + 1];  // (column, pair of rows)
  const int tx = int(threadIdx.x) % kTile, ty = int(threadIdx.x) / kTile;
  for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    const TransposedTile at(t, i, 2 * kTile);
    const auto* from = reinterpret_cast<const uint32_t*>(x + at.from + at.row * t.from_step + at.column);
    auto* to = reinterpret_cast<uint32_t*>(y + at.to + at.column * t.to_step + at.row);
    const int64_t rows = t.rows - at.row, columns = t.columns - at.column;
    const int64_t from_step = t.from_step / 2, to_step = t.to_step / 2;  // in pairs
#pragma unroll
    for (int k = ty; k < kTile; k += kThreads / kTile) {
      if (2 * k >= rows || 2 * tx >= columns) continue;
      const uint32_t first = from[2 * k * from_step + tx], second = from[(2 * k + 1) * from_step + tx];
      tile[2 * tx][k] = __byte_perm(first, second, 0x5410);      // the lower halves of both
      tile[2 * tx + 1][k] = __byte_perm(first, second, 0x7632);  // the upper
    }
    __syncthreads();
#pragma unroll
    for (int k = ty; k < 2 * kTile; k += kThreads / kTile) {
      if (k < columns && 2 * tx < rows) to[k * to_step + tx] = tile[k][tx];
    }
    __syncthreads();
  }
}

// Input 0 becomes output 0, of that type.
inline std::unique_ptr<Kernel> make_transposition(const Transposition& t, DataType type, int multiprocessors) {
  return with_word(type, [&](auto word) {
    using Word = decltype(word);
    return make_kernel([=, planes = PlaneTiles::of(t, sizeof(Word))](const KernelContext& c) {
      if (planes) return transpose_planes(stream_of(c), t, *planes, input<Word>(c, 0), output<Word>(c, 0));
      const Word* x = input<Word>(c, 0);
      Word* y = output<Word>(c, 0);
      const bool whole = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 4 == 0;
      const bool pairs = sizeof(Word) == 2 && whole && t.in_pairs();
      const int64_t side = pairs ? 2 * kTile : kTile;
      const int64_t tiles = t.matrices.count * ((t.rows + side - 1) / side) * ((t.columns + side - 1) / side);
      if (tiles == 0) return;
      const auto kernel = [&] {
        if constexpr (sizeof(Word) == 2) {
          if (pairs) return &transpose_pairs_kernel<Word>;
        }
        return &transpose_kernel<Word>;
      }();
      const auto blocks = unsigned(std::min<int64_t>(tiles, int64_t(multiprocessors) * 16));
      launch_dependent(kernel, blocks, kThreads, 0, stream_of(c), t, tiles, x, y);
      check_launch("transposition");
    });
  });
}

}  // namespace arbalest::cuda
