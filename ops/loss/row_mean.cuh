// SPDX-License-Identifier: Apache-2.0
#pragma once
// The mean over the valid rows of a batch of a value that a warp computes for each row: losses and accuracies.

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/loss/score_rows.h"

namespace arbalest::cuda {

__device__ inline int64_t valid_rows(const StepScalars* scalars, int64_t rows) {
  return max(int64_t{0}, min(int64_t(scalars->valid), rows));
}

// Contribution of a row to the means (Value::Result below), unless that is a plain float. It holds a number times the
// row's weight, that weight, a second number, and the weight of the second.
struct Weighted {
  float value = 0, weight = 0, second = 0, second_weight = 0;
};
__device__ inline float plus(float a, float b) {
  return a + b;
}
__device__ inline Weighted plus(Weighted a, Weighted b) {
  return {a.value + b.value, a.weight + b.weight, a.second + b.second, a.second_weight + b.second_weight};
}

// Over a block, in a fixed order.
__device__ inline Weighted block_sum(Weighted x) {
  return {block_sum(x.value), block_sum(x.weight), block_sum(x.second), block_sum(x.second_weight)};
}

// Destinations of the means and, for Weighted, of the weights that they are divided by. All but the first may be null.
struct Means {
  float *first, *second = nullptr, *weight = nullptr, *second_weight = nullptr;
};

// The means over `valid` rows from the sums of a block's threads.
__device__ inline void write_means(float sum, int64_t valid, Means means) {
  sum = block_sum(sum);
  if (threadIdx.x == 0) *means.first = valid > 0 ? sum / float(valid) : 0.0f;
}
// Rows that have a sum but weigh nothing weigh −1 each (see softmax_cross_entropy.cpp).
__device__ inline void write_mean(float sum, float weights, int64_t valid, float* mean, float* weight_of_mean) {
  const float value = block_sum(sum);
  float weight = block_sum(weights);
  if (threadIdx.x != 0) return;
  if (!(weight > 0) && value != 0) weight = -float(valid);
  if (mean != nullptr) *mean = weight != 0 ? value / fabsf(weight) : 0.0f;
  if (weight_of_mean != nullptr) *weight_of_mean = weight;
}
__device__ inline void write_means(Weighted sum, int64_t valid, Means means) {
  write_mean(sum.value, sum.weight, valid, means.first, means.weight);
  if (means.second == nullptr && means.second_weight == nullptr) return;
  write_mean(sum.second, sum.second_weight, valid, means.second, means.second_weight);
}

// One block for all rows. value(row, lane): called by all lanes of a warp, the same result in each.
template <typename Value>
__global__ void __launch_bounds__(1024)
    row_mean_kernel(ScoreRows rows, const StepScalars* scalars, Value value, Means means) {
  const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  typename Value::Result sum = {};
  for (int64_t row = threadIdx.x / 32; row < valid; row += warps) {
    const auto x = value(row, lane);
    if (lane == 0) sum = plus(sum, x);
  }
  write_means(sum, valid, means);
}

// Many rows or long ones: a warp a row, then one block that adds up what the blocks have summed. sums: (blocks).
template <typename Value>
__global__ void __launch_bounds__(kThreads)
    row_sums_kernel(ScoreRows rows, const StepScalars* scalars, Value value, typename Value::Result* sums) {
  const int lane = int(threadIdx.x) % 32;
  wait_for_dependencies();
  const int64_t valid = rows.valid(scalars->valid);
  typename Value::Result sum = {};
  for (int64_t row = thread_index() / 32; row < valid; row += thread_count() / 32) {
    const auto x = value(row, lane);
    if (lane == 0) sum = plus(sum, x);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <typename Result>
__global__ void __launch_bounds__(1024)
    mean_kernel(ScoreRows rows, const StepScalars* scalars, int blocks, const Result* sums, Means means) {
  wait_for_dependencies();
  Result sum = {};
  for (int block = int(threadIdx.x); block < blocks; block += int(blockDim.x)) sum = plus(sum, sums[block]);
  write_means(sum, rows.valid(scalars->valid), means);
}

// Work that the warps of one block get through in a few µs: some eight rows each.
inline bool fits_one_block(const ScoreRows& rows) {
  return rows.rows <= 256 && rows.rows * rows.classes <= 32768;
}

// Blocks of row_sums_kernel, whose number does not depend on the device. `each`: rows that a block takes at a time.
inline int row_blocks(const ScoreRows& rows, int each = kThreads / 32) {
  constexpr int64_t kMost = 4096;
  return int(std::clamp<int64_t>((rows.rows + each - 1) / each, 1, kMost));
}

// Bytes.
template <typename Result>
int64_t row_mean_workspace(const ScoreRows& rows) {
  return fits_one_block(rows) ? 0 : row_blocks(rows) * int64_t(sizeof(Result));
}

template <typename Result>
void launch_means(const char* name, const KernelContext& c, const ScoreRows& rows, int blocks, const Result* sums,
                  Means means) {
  launch_dependent(mean_kernel<Result>, 1, 1024, 0, stream_of(c), rows, c.scalars, blocks, sums, means);
  check_launch(name);
}

template <typename Value>
void launch_row_mean(const char* name, const KernelContext& c, const ScoreRows& rows, Value value, Means means) {
  if (fits_one_block(rows)) {
    const int threads = int(std::clamp<int64_t>(rows.rows, 1, 32) * 32);
    launch_dependent(row_mean_kernel<Value>, 1, threads, 0, stream_of(c), rows, c.scalars, value, means);
    check_launch(name);
    return;
  }
  auto* sums = static_cast<typename Value::Result*>(c.workspace);
  const int blocks = row_blocks(rows);
  launch_dependent(row_sums_kernel<Value>, blocks, kThreads, 0, stream_of(c), rows, c.scalars, value, sums);
  check_launch(name);
  launch_means(name, c, rows, blocks, sums, means);
}

}  // namespace arbalest::cuda
