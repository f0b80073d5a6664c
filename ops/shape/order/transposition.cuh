// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernels that transpose matrices, in whatever order they lie: whole lines of both tensors, through shared memory.

#include "ops/shape/order/planes.cuh"
#include "ops/words.h"

namespace arbalest::cuda {

// How matrices are cut into tiles that go through shared memory. A tile has up to 64 rows of up to 128 bytes, and both
// axes are cut evenly.
struct TransposedTiles {
  static constexpr int kRows = 64, kLineBytes = 128;

  int rows = 1, columns = 1;  // of a tile, at most
  unsigned down = 1, across = 1;
  int64_t count = 0;  // of all matrices

  // Tiles of words of so many bytes. Their sides are multiples of `pack` words.
  TransposedTiles(const Transposition& t, int64_t bytes, int64_t pack) {
    const auto cut = [&](int64_t extent, int64_t most, int& side) {
      const int64_t pieces = std::max<int64_t>(1, (extent + most - 1) / most);
      side = int(std::max<int64_t>(1, ((extent + pieces - 1) / pieces + pack - 1) / pack * pack));
      return unsigned((extent + side - 1) / side);
    };
    down = cut(t.rows, kRows, rows);
    across = cut(t.columns, kLineBytes / bytes, columns);
    count = t.matrices.count * down * across;
  }
};

// A block takes a tile, W words at a time. Row r's pack p lies in place p ^ (r / W) of its line in shared memory. A
// warp reads the columns of packs of four bytes or more without conflicts then.
template <int W, typename Word>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(Transposition t, TransposedTiles tiles, const Word* x, Word* y) {
  constexpr int kRows = TransposedTiles::kRows, kColumns = TransposedTiles::kLineBytes / int(sizeof(Word));
  constexpr int kPacks = kColumns / W;           // of a row of x
  constexpr int kDepth = kThreads / kPacks;      // rows that the block loads at once
  constexpr int kLinePacks = kRows / W;          // of a line of y
  constexpr int kLines = kThreads / kLinePacks;  // lines that it stores at once
  __shared__ __align__(16) Word tile[kRows][kColumns];
  const unsigned per_matrix = tiles.down * tiles.across, matrix = blockIdx.x / per_matrix,
                 within = blockIdx.x - matrix * per_matrix, tile_row = within / tiles.across;
  const int64_t row = int64_t(tile_row) * tiles.rows,
                column = int64_t(within - tile_row * tiles.across) * tiles.columns;
  const int rows = int(min(int64_t(tiles.rows), t.rows - row));
  const int columns = int(min(int64_t(tiles.columns), t.columns - column));
  x += t.matrices.offset(matrix, 1) + row * t.from_step + column;
  y += t.matrices.offset(matrix, 0) + column * t.to_step + row;
  wait_for_dependencies();

  constexpr int kLoads = kRows / kDepth;
  const int pack = int(threadIdx.x) % kPacks, first = int(threadIdx.x) / kPacks;
  const bool inside = pack * W < columns;
  Pack<Word, W> loaded[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int r = first + i * kDepth;
    if (inside && r < rows) loaded[i] = load<W>(x + r * t.from_step + pack * W);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int r = first + i * kDepth;
    if (inside && r < rows) store(tile[r] + (pack ^ (r / W % kPacks)) * W, loaded[i]);
  }
  __syncthreads();
  const int above = int(threadIdx.x) % kLinePacks * W;
  if (above >= rows) return;
#pragma unroll
  for (int c = int(threadIdx.x) / kLinePacks; c < kColumns; c += kLines) {
    if (c >= columns) break;
    Pack<Word, W> line;
#pragma unroll
    for (int i = 0; i < W; ++i) line.element[i] = tile[above + i][((c / W) ^ (above / W % kPacks)) * W + c % W];
    store(y + c * t.to_step + above, line);
  }
}

template <int W, typename Word>
void launch_transposition(const KernelContext& c, const Transposition& t) {
  const TransposedTiles tiles(t, sizeof(Word), W);
  if (tiles.count == 0) return;
  launch_dependent(transpose_kernel<W, Word>, unsigned(tiles.count), kThreads, 0, stream_of(c), t, tiles,
                   input<Word>(c, 0), output<Word>(c, 0));
  check_launch("transposition");
}

// Input 0 becomes output 0, of that type.
inline std::unique_ptr<Kernel> make_transposition(const Transposition& t, DataType type) {
  return with_word(type, [&](auto word) {
    using Word = decltype(word);
    constexpr int kWide = 16 / sizeof(Word);
    return make_kernel([=, planes = PlaneTiles::of(t, sizeof(Word)), most = t.divisor(kWide)](const KernelContext& c) {
      if (planes) return transpose_planes(stream_of(c), t, *planes, input<Word>(c, 0), output<Word>(c, 0));
      const auto addresses = reinterpret_cast<uintptr_t>(c.inputs[0]) | reinterpret_cast<uintptr_t>(c.outputs[0]);
      const auto fits = [&](int words) { return most % words == 0 && addresses % (words * sizeof(Word)) == 0; };
      if (fits(kWide)) return launch_transposition<kWide, Word>(c, t);
      if constexpr (sizeof(Word) < 8) {
        if (fits(kWide / 2)) return launch_transposition<kWide / 2, Word>(c, t);
      }
      if constexpr (sizeof(Word) == 2) {
        if (fits(2)) return launch_transposition<2, Word>(c, t);
      }
      launch_transposition<1, Word>(c, t);
    });
  });
}

}  // namespace arbalest::cuda
