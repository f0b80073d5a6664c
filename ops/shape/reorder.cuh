// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA kernel between the memory layouts of one tensor: a transposition for each image, a copy if the orders agree.

#include "ops/cuda/cuda_math.cuh"
#include "ops/shape/reorder.h"
#include "ops/words.h"

namespace arbalest::cuda {

inline constexpr int kTile = 32;

// from: (batch, rows, columns) → to: (batch, columns, rows). A block of 32 × 8 threads takes tiles of 32 × 32.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(int64_t batch, int64_t rows, int64_t columns, const Word* from, Word* to) {
  __shared__ Word tile[kTile][kTile + 1];
  const int64_t row_tiles = (rows + kTile - 1) / kTile, column_tiles = (columns + kTile - 1) / kTile;
  const int tx = int(threadIdx.x) % kTile, ty = int(threadIdx.x) / kTile;
  for (int64_t i = blockIdx.x; i < batch * row_tiles * column_tiles; i += gridDim.x) {
    const int64_t image = i / (row_tiles * column_tiles), within = i % (row_tiles * column_tiles);
    const int64_t row = within / column_tiles * kTile, column = within % column_tiles * kTile;
    const int64_t base = image * rows * columns;
#pragma unroll
    for (int k = 0; k < kTile; k += kThreads / kTile) {
      if (row + ty + k < rows && column + tx < columns) {
        tile[ty + k][tx] = from[base + (row + ty + k) * columns + column + tx];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; k += kThreads / kTile) {
      if (column + ty + k < columns && row + tx < rows) {
        to[base + (column + ty + k) * rows + row + tx] = tile[tx][ty + k];
      }
    }
    __syncthreads();
  }
}

template <typename Word>
std::unique_ptr<Kernel> make_transpose(const Reordering& order, int multiprocessors) {
  const int64_t row_tiles = (order.rows + kTile - 1) / kTile, column_tiles = (order.columns + kTile - 1) / kTile;
  const int64_t tiles = order.batch * row_tiles * column_tiles;
  const unsigned blocks = unsigned(std::min<int64_t>(tiles, int64_t(multiprocessors) * 16));
  return make_kernel([=](const KernelContext& c) {
    transpose_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(order.batch, order.rows, order.columns, input<Word>(c, 0),
                                                            output<Word>(c, 0));
    check_launch("change of memory order");
  });
}

// Brings input 0, of type `type`, into `layout`.
inline std::unique_ptr<Kernel> make_reorder(const KernelRequest& request, const TensorType& type, Layout layout) {
  const Reordering order(type, layout);
  const int64_t bytes = type.bytes();
  if (bytes == 0 || order.copies()) {
    return make_kernel([bytes](const KernelContext& c) {
      if (bytes == 0 || c.outputs[0] == c.inputs[0]) return;
      CUDA_CHECK(cudaMemcpyAsync(c.outputs[0], c.inputs[0], size_t(bytes), cudaMemcpyDeviceToDevice, stream_of(c)));
    });
  }
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_word(type.dtype, [&](auto word) { return make_transpose<decltype(word)>(order, multiprocessors); });
}

}  // namespace arbalest::cuda
