// SPDX-License-Identifier: Apache-2.0
#pragma once
// Totals of the partial sums of blocks, added in a fixed order.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

// partials: (blocks, count). Four neighbours by each of eight lanes, which share the blocks.
static __global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(int blocks, int count, const float* partials, float* out) {
  wait_for_dependencies();
  const int item = int(thread_index() / 8), part = int(threadIdx.x) % 8;
  float4 total = {0, 0, 0, 0};
  if (item < count / 4) {
#pragma unroll 4
    for (int block = part; block < blocks; block += 8) {
      const float4 more = *reinterpret_cast<const float4*>(partials + int64_t(block) * count + item * 4);
      total.x += more.x;
      total.y += more.y;
      total.z += more.z;
      total.w += more.w;
    }
  }
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) {
    total.x += __shfl_xor_sync(0xffffffffu, total.x, offset);
    total.y += __shfl_xor_sync(0xffffffffu, total.y, offset);
    total.z += __shfl_xor_sync(0xffffffffu, total.z, offset);
    total.w += __shfl_xor_sync(0xffffffffu, total.w, offset);
  }
  if (item < count / 4 && part == 0) *reinterpret_cast<float4*>(out + item * 4) = total;
}

// `count` is a multiple of 4.
inline void sum_partials(cudaStream_t stream, int blocks, int count, const float* partials, float* out) {
  launch_dependent(sum_partials_kernel, (count * 2 + kThreads - 1) / kThreads, kThreads, 0, stream, blocks, count,
                   partials, out);
  check_launch("sums of partial sums");
}

// Σ over chunks of partials (matrices, chunks, columns), times `scale`. block.x: 32 columns, block.y: a matrix, whose
// totals (columns) go to out[block.y] unless it is null. Warp w adds up the chunks w, w + kTotalRows, ….
inline constexpr int kTotalRows = 32;
struct TotalsOf {
  float* out[2];
};
static __global__ void __launch_bounds__(32 * kTotalRows)
    column_totals_kernel(int64_t columns, int chunks, const float* partials, float scale, TotalsOf totals) {
  __shared__ float sums[kTotalRows][33];
  wait_for_dependencies();
  const int row = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int64_t first = int64_t(blockIdx.x) * 32;
  const float* from = partials + int64_t(blockIdx.y) * chunks * columns + first + lane;
  float sum = 0;
  if (first + lane < columns) {
#pragma unroll 8
    for (int chunk = row; chunk < chunks; chunk += kTotalRows) sum += from[chunk * columns];
  }
  sums[row][lane] = sum;
  __syncthreads();
  const float total = warp_sum(sums[lane][row]);
  float* const out = totals.out[blockIdx.y];
  if (lane == 0 && first + row < columns && out != nullptr) out[first + row] = scale * total;
}

// Launches column_totals_kernel for one matrix of partials, or for two that are adjacent in memory.
inline void column_totals(cudaStream_t stream, int64_t columns, int chunks, const float* partials, float scale,
                          TotalsOf totals, int matrices) {
  launch_dependent(column_totals_kernel, dim3(unsigned((columns + 31) / 32), unsigned(matrices)), 32 * kTotalRows, 0,
                   stream, columns, chunks, partials, scale, totals);
  check_launch("totals of partial sums");
}

}  // namespace arbalest::cuda
