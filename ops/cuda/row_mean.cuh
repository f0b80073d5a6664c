#pragma once
// The mean over the valid rows of a batch of a value, or of two, that a warp computes for each row: losses and
// accuracies.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

__device__ inline int64_t valid_rows(const StepScalars* scalars, int64_t rows) {
  return max(int64_t{0}, min(int64_t(scalars->valid), rows));
}

// One block for all rows. value(row, lane): called by all lanes of a warp, the same result in each.
template <typename Value>
__global__ void __launch_bounds__(1024)
    row_mean_kernel(int64_t rows, const StepScalars* scalars, Value value, float* mean) {
  const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  const int64_t valid = valid_rows(scalars, rows);
  float sum = 0;
  for (int64_t row = threadIdx.x / 32; row < valid; row += warps) {
    const float x = value(row, lane);
    if (lane == 0) sum += x;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) *mean = valid > 0 ? sum / float(valid) : 0.0f;
}

// Many rows or long ones: a warp a row, then one block that averages. values: (rows).
template <typename Value>
__global__ void __launch_bounds__(kThreads)
    row_values_kernel(int64_t rows, const StepScalars* scalars, Value value, float* values) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t valid = valid_rows(scalars, rows);
  for (int64_t row = thread_index() / 32; row < valid; row += thread_count() / 32) {
    const float x = value(row, lane);
    if (lane == 0) values[row] = x;
  }
}

template <int Unused = 0>
__global__ void __launch_bounds__(1024)
    mean_kernel(int64_t rows, const StepScalars* scalars, const float* values, float* mean) {
  const int64_t valid = valid_rows(scalars, rows);
  float sum = 0;
  for (int64_t row = threadIdx.x; row < valid; row += blockDim.x) sum += values[row];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *mean = valid > 0 ? sum / float(valid) : 0.0f;
}

// The same of two values a row: value(row, lane) is a float2.
struct MeanPair {
  float *x, *y;
};

template <typename Value>
__global__ void __launch_bounds__(1024)
    row_mean_pair_kernel(int64_t rows, const StepScalars* scalars, Value value, MeanPair mean) {
  const int lane = int(threadIdx.x) % 32, warps = int(blockDim.x) / 32;
  const int64_t valid = valid_rows(scalars, rows);
  float2 sum = {0, 0};
  for (int64_t row = threadIdx.x / 32; row < valid; row += warps) {
    const float2 pair = value(row, lane);
    if (lane == 0) sum = {sum.x + pair.x, sum.y + pair.y};
  }
  sum = {block_sum(sum.x), block_sum(sum.y)};
  if (threadIdx.x == 0) *mean.x = valid > 0 ? sum.x / float(valid) : 0.0f;
  if (threadIdx.x == 0) *mean.y = valid > 0 ? sum.y / float(valid) : 0.0f;
}

template <typename Value>
__global__ void __launch_bounds__(kThreads)
    row_pairs_kernel(int64_t rows, const StepScalars* scalars, Value value, float2* pairs) {
  const int lane = int(threadIdx.x) % 32;
  const int64_t valid = valid_rows(scalars, rows);
  for (int64_t row = thread_index() / 32; row < valid; row += thread_count() / 32) {
    const float2 pair = value(row, lane);
    if (lane == 0) pairs[row] = pair;
  }
}

template <int Unused = 0>
__global__ void __launch_bounds__(1024)
    mean_pair_kernel(int64_t rows, const StepScalars* scalars, const float2* pairs, MeanPair mean) {
  const int64_t valid = valid_rows(scalars, rows);
  float2 sum = {0, 0};
  for (int64_t row = threadIdx.x; row < valid; row += blockDim.x) {
    const float2 pair = pairs[row];
    sum = {sum.x + pair.x, sum.y + pair.y};
  }
  sum = {block_sum(sum.x), block_sum(sum.y)};
  if (threadIdx.x == 0) *mean.x = valid > 0 ? sum.x / float(valid) : 0.0f;
  if (threadIdx.x == 0) *mean.y = valid > 0 ? sum.y / float(valid) : 0.0f;
}

// Work that one block gets through in a few µs.
inline bool fits_one_block(int64_t rows, int64_t classes) {
  return rows * classes <= 32768;
}

inline int64_t row_mean_workspace(int64_t rows, int64_t classes) {
  return fits_one_block(rows, classes) ? 0 : rows * int64_t(sizeof(float));
}

inline int64_t row_mean_pair_workspace(int64_t rows, int64_t classes) {
  return 2 * row_mean_workspace(rows, classes);
}

template <typename Value>
void launch_row_mean_pair(const char* name, const KernelContext& c, int multiprocessors, int64_t rows, int64_t classes,
                          Value value, MeanPair mean) {
  if (fits_one_block(rows, classes)) {
    const unsigned threads = unsigned(std::clamp<int64_t>(rows, 1, 32) * 32);
    row_mean_pair_kernel<<<1, threads, 0, stream_of(c)>>>(rows, c.scalars, value, mean);
    check_launch(name);
    return;
  }
  auto* pairs = static_cast<float2*>(c.workspace);
  row_pairs_kernel<<<blocks_for(rows * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(rows, c.scalars, value,
                                                                                          pairs);
  check_launch(name);
  mean_pair_kernel<><<<1, 1024, 0, stream_of(c)>>>(rows, c.scalars, pairs, mean);
  check_launch(name);
}

template <typename Value>
void launch_row_mean(const char* name, const KernelContext& c, int multiprocessors, int64_t rows, int64_t classes,
                     Value value, float* mean) {
  if (fits_one_block(rows, classes)) {
    const unsigned threads = unsigned(std::clamp<int64_t>(rows, 1, 32) * 32);
    row_mean_kernel<<<1, threads, 0, stream_of(c)>>>(rows, c.scalars, value, mean);
    check_launch(name);
    return;
  }
  auto* values = static_cast<float*>(c.workspace);
  row_values_kernel<<<blocks_for(rows * 32, multiprocessors), kThreads, 0, stream_of(c)>>>(rows, c.scalars, value,
                                                                                           values);
  check_launch(name);
  mean_kernel<><<<1, 1024, 0, stream_of(c)>>>(rows, c.scalars, values, mean);
  check_launch(name);
}

}  // namespace arbalest::cuda
