// SPDX-License-Identifier: Apache-2.0
#pragma once
// Batch normalisation in one launch each way, of tensors so small that launches take most of the time. The blocks of a
// slice of channels are a cluster: each sums up a chunk of rows, reads the others' sums, and writes its chunk.

#include <algorithm>

#include "ops/norm/batch_norm.cuh"
#include "ops/norm/cluster.cuh"

namespace arbalest::cuda {

inline constexpr int kMostOfCluster = 8;                   // blocks
inline constexpr int64_t kAtOnceBytes = int64_t{4} << 20;  // of a tensor, at most
inline constexpr int64_t kAtOnceRows = 32;                 // of a thread, at most: few blocks take longer than launches

// Slices of about as many channels as give each multiprocessor a block, in rows of at least 32 bytes, which memory is
// read in. A chunk is a block of the slice's cluster, which has a power of two of them.
inline Columns at_once_columns(int64_t rows, int64_t channels, int width, int element_bytes, int multiprocessors) {
  const int64_t slices = std::max<int64_t>(1, multiprocessors / kMostOfCluster);
  const int64_t wanted = std::clamp<int64_t>((channels + slices - 1) / slices, 32 / element_bytes, kSliceColumns);
  const int packs = int((wanted + width - 1) / width);
  Columns columns;
  columns.rows = rows;
  columns.count = columns.channels = int(channels);
  columns.lanes = int(std::min<int64_t>(packs, channels / width));
  columns.slices = int((channels / width + columns.lanes - 1) / columns.lanes);
  const int64_t depth = kThreads / columns.lanes;
  const auto rows_of = [rows](int chunks) { return (rows + chunks - 1) / chunks; };
  columns.chunks = kMostOfCluster;  // or half as many, until each has rows for its threads
  while (columns.chunks > 1 &&
         (rows_of(columns.chunks) < depth || rows_of(columns.chunks) * (columns.chunks - 1) >= rows)) {
    columns.chunks /= 2;
  }
  columns.chunk_rows = rows_of(columns.chunks);
  return columns;
}

// Whether such a layout has enough blocks for the rows.
inline bool is_spread(const Columns& columns) {
  return columns.chunk_rows <= kAtOnceRows * (kThreads / columns.lanes);
}

// Shows the cluster what this thread has for its column, and reads what each chunk has: f(chunk, its value there), in
// order. Blocks end after wait_for_cluster(), so that others can read their memory until then.
template <int W, typename Function>
__device__ void share_in_cluster(const Columns& columns, const Place<W>& place, float2 own, Function f) {
  auto* const shared = reinterpret_cast<float2*>(dynamic_shared());  // (slice_columns)
  const int t = int(threadIdx.x);
  const bool holds = total_column(place) >= 0;
  if (holds) shared[t] = own;
  arrive_in_cluster();
  wait_for_cluster();
  if (holds) {
#pragma unroll
    for (int chunk = 0; chunk < kMostOfCluster; ++chunk) {
      if (chunk < columns.chunks) f(chunk, load_of_block(shared + t, chunk));
    }
  }
  arrive_in_cluster();
}

// The statistics of this thread's column of total_column(), as merge_partials() has them.
template <int W, typename T>
__device__ Partial statistics_at_once(const Columns& columns, const Place<W>& place, const T* x) {
  float sums[2] = {}, first = 0;  // of deviations from the first chunk's mean, and of their squares
  share_in_cluster(columns, place, statistics_of_chunk(columns, place, x), [&](int chunk, Partial partial) {
    if (chunk == 0) first = partial.x;
    const float count = float(rows_in_chunk(columns, chunk)), deviation = partial.x - first;
    sums[0] += count * deviation;
    sums[1] += partial.y + count * deviation * deviation;
  });
  const float shift = sums[0] / float(columns.rows);
  return make_float2(first + shift, fmaxf(sums[1] - sums[0] * shift, 0.0f));
}

template <int W, bool Relu, bool Residual, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_at_once_kernel(Columns columns, Statistics statistics, const T* x, const T* residual, T* y) {
  __shared__ SliceTerms terms;
  const Place<W> place(columns);
  wait_for_dependencies();
  const int column = total_column(place);
  const Affine affine(statistics, column);
  const Partial merged = statistics_at_once(columns, place, x);
  if (column >= 0) {
    take_statistics(statistics, affine, merged, float(columns.rows), column, place.stores(column), terms);
  }
  __syncthreads();
  normalize_rows<W, Relu, Residual>(columns, place, terms, x, residual, y);
  wait_for_cluster();
}

// Stores the statistics alone.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    statistics_at_once_kernel(Columns columns, Statistics statistics, const T* x) {
  const Place<W> place(columns);
  wait_for_dependencies();
  const int column = total_column(place);
  const Partial merged = statistics_at_once(columns, place, x);
  if (column >= 0 && place.stores(column)) {
    const float rows = float(columns.rows);
    store_statistics(statistics, merged, rows, inverse_deviation(merged, rows, statistics.epsilon), column);
  }
  wait_for_cluster();
}

// dx and kept may be null; `kept` gets g.
template <int W, Mask kMask, bool kTwo, typename T>
__global__ void __launch_bounds__(kThreads)
    gradient_at_once_kernel(Columns columns, GradientOf<T> from, T* dx, T* kept, float* dscale, float* dbias) {
  __shared__ GradientTerms terms;
  const Place<W> place(columns);
  wait_for_dependencies();
  const int column = total_column(place);
  const ChannelNumbers numbers(from.mean, from.inv_std, from.scale, column);
  float sums[2][W] = {}, own[2], total[2] = {};
  add_gradient_sums<W, kMask, kTwo, true>(columns, place, from, kept, sums);
  sum_rows(place, sums, own);
  share_in_cluster(columns, place, make_float2(own[0], own[1]), [&](int, float2 of_chunk) {
    total[0] += of_chunk.x;
    total[1] += of_chunk.y;
  });
  if (column >= 0) {
    take_gradient_terms(numbers, total, float(columns.rows), column, place.stores(column), dscale, dbias, terms);
  }
  __syncthreads();
  if (dx != nullptr && kept != nullptr) {  // which may be the memory of dY
    GradientOf<T> made = from;
    made.dy = kept;
    write_gradient<W, Mask::None, false>(columns, place, made, terms, dx);
  } else if (dx != nullptr) {
    write_gradient<W, kMask, kTwo>(columns, place, from, terms, dx);
  }
  wait_for_cluster();
}

}  // namespace arbalest::cuda
