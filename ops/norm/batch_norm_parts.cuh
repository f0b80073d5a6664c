// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of batch normalisation over parts, which are concatenated along the channels. A row of Y and dY has the
// channels of all parts, a row of part i's tensors only its own. A slice of channels lies in one part. Otherwise they
// work as in batch_norm.cuh.

#include "ops/norm/batch_norm.cuh"
#include "ops/norm/batch_norms.h"

namespace arbalest::cuda {

// How parts are cut into slices, and all their rows into the same chunks.
struct PartTable {
  Columns all;  // rows and channels of all parts, their slices, chunks; `lanes` of the part with the fewest
  int first_slice[kMostParts + 1];
  int first_channel[kMostParts + 1];  // ends with the number of all channels
  int lanes[kMostParts];
};

// Position of a block and its threads: the part, and the columns and place within that part.
template <int W>
struct PartPlace {
  int part, first_channel;
  Columns columns;
  Place<W> place;

  __device__ explicit PartPlace(const PartTable& table)
      : part(part_of(table)),
        first_channel(table.first_channel[part]),
        columns(columns_of(table, part)),
        place(columns, int(blockIdx.x) - table.first_slice[part]) {}

  // The last part whose first slice is not after the block's. After all parts there are empty ones.
  __device__ static int part_of(const PartTable& table) {
    static_assert((kMostParts & (kMostParts - 1)) == 0);
    int part = 0;
#pragma unroll
    for (int step = int(kMostParts) / 2; step > 0; step /= 2) {
      if (table.first_slice[part + step] <= int(blockIdx.x)) part += step;
    }
    return part;
  }
  __device__ static Columns columns_of(const PartTable& table, int part) {
    Columns columns = table.all;
    columns.count = columns.channels = table.first_channel[part + 1] - table.first_channel[part];
    columns.lanes = table.lanes[part];
    return columns;
  }
};

// A tensor's rows, as a thread reads and writes them: its pack in the first row, elements from a row to the next.
template <typename T>
struct ThreadRows {
  T* first;
  int64_t stride;

  __device__ T* at(int64_t row) const { return first + row * stride; }
};

// f(row, packs of each tensor there) for the thread's rows of the chunk, in order; the loads of kUnroll rows are issued
// before the first is used.
template <int W, typename Function, typename... T>
__device__ inline void for_thread_rows(const Place<W>& place, Function f, ThreadRows<const T>... tensor) {
  if (!place.active) return;
  int64_t row = place.begin + place.row;
  const auto batch = [&](RowPacks<T, W>... rows) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) ((rows.pack[u] = load<W>(tensor.at(row + u * place.depth))), ...);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) f(row + u * place.depth, rows.pack[u]...);
  };
  for (; row + (kUnroll - 1) * place.depth < place.end; row += kUnroll * place.depth) batch(RowPacks<T, W>()...);
  for (; row < place.end; row += place.depth) f(row, load<W>(tensor.at(row))...);
}

// Rows, from the thread's first channel on, of a tensor of the part and of a tensor of all parts.
template <int W, typename T>
__device__ ThreadRows<T> rows_of_part(const PartPlace<W>& at, T* tensor) {
  return {tensor + at.place.column, at.columns.count};
}
template <int W, typename T>
__device__ ThreadRows<T> rows_of_all(const PartTable& table, const PartPlace<W>& at, T* tensor) {
  return {tensor + at.first_channel + at.place.column, table.all.count};
}

// Merges the partials of all chunks into each channel's mean and sum of squared deviations from it. One block a slice.
template <int W>
__global__ void __launch_bounds__(kThreads)
    merge_statistics_kernel(Columns reduced, const Partial* partials, Partial* statistics) {
  wait_for_dependencies();
  const Place<W> place(reduced);
  const Partial merged = merge_partials(reduced, place, partials);
  const int channel = total_column(place);
  if (channel >= 0) statistics[channel] = merged;
}

template <typename T>
struct NormalizedParts {
  PartTable table;
  const T* x[kMostParts];
  const Partial* statistics[kMostParts];  // of training: by channel of the part
};

template <int W, bool Relu, typename T>
__device__ void normalize_part(const NormalizedParts<T>& parts, const PartPlace<W>& at, const SliceTerms& terms, T* y) {
  const Place<W>& place = at.place;
  float mean[W], gain[W], bias[W];
#pragma unroll
  for (int w = 0; w < W; ++w) {
    const int channel = place.active ? place.lane * W + w : 0;
    mean[w] = terms.mean[channel];
    gain[w] = terms.gain[channel];
    bias[w] = terms.bias[channel];
  }
  const ThreadRows<T> to = rows_of_all(parts.table, at, y);
  const auto write = [&](int64_t row, const Pack<T, W>& pack) {
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float value = normalized(widen(pack.element[w]), mean[w], gain[w], bias[w]);
      result.element[w] = narrow<T>(Relu && value < 0 ? 0.0f : value);  // NaN stays NaN
    }
    store(to.at(row), result);
  };
  for_thread_rows(place, write, rows_of_part(at, parts.x[at.part]));
}

// `statistics`: vectors of all channels.
template <int W, bool Relu, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_parts_kernel(const __grid_constant__ NormalizedParts<T> parts, Statistics statistics, T* y) {
  wait_for_dependencies();
  __shared__ SliceTerms terms;
  const PartPlace<W> at(parts.table);
  const int channel = total_column(at.place);
  if (channel >= 0) {
    const int own = at.first_channel + channel;
    take_statistics(statistics, Affine(statistics, own), parts.statistics[at.part][channel], float(at.columns.rows),
                    own, blockIdx.y == 0, terms);
  }
  __syncthreads();
  normalize_part<W, Relu>(parts, at, terms, y);
}

// Computes normalize_parts_kernel's result again, from saved statistics; those in `parts` are not needed.
template <int W, bool Relu, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_parts_again_kernel(const __grid_constant__ NormalizedParts<T> parts, const float* scale,
                                 const float* bias, const float* saved_mean, const float* saved_inv_std, T* y) {
  wait_for_dependencies();
  __shared__ SliceTerms terms;
  const PartPlace<W> at(parts.table);
  const int channel = total_column(at.place);
  if (channel >= 0) take_saved(scale, bias, saved_mean, saved_inv_std, at.first_channel + channel, terms);
  __syncthreads();
  normalize_part<W, Relu>(parts, at, terms, y);
}

template <int W, bool Relu, typename T>
__global__ void __launch_bounds__(kThreads)
    inference_parts_kernel(const __grid_constant__ NormalizedParts<T> parts, const float* scale, const float* bias,
                           const float* mean, const float* var, float epsilon, T* y) {
  __shared__ SliceTerms terms;
  const PartPlace<W> at(parts.table);
  const int t = int(threadIdx.x), channel = total_column(at.place), own = at.first_channel + channel;
  if (channel >= 0) {
    terms.mean[t] = mean[own];
    terms.gain[t] = scale[own] / sqrtf(var[own] + epsilon);
    terms.bias[t] = bias[own];
  }
  __syncthreads();
  normalize_part<W, Relu>(parts, at, terms, y);
}

// Operands of the gradient g of the normalised values, and destinations of the parts' gradients.
template <typename T>
struct GradientOfParts {
  PartTable table;
  const T* dy;  // of all parts
  const T* x[kMostParts];
  const T* addend[kMostParts];  // null if there is none; may be dx
  T* dx[kMostParts];
  const float *mean, *inv_std, *scale, *bias;  // by channel of all; the last with Relu
};

// f(row, W elements of g, pack of x, packs of `more`) for the thread's rows of the chunk.
template <int W, bool Relu, typename T, typename Function, typename... More>
__device__ void for_part_gradient(const GradientOfParts<T>& from, const PartPlace<W>& at, Function f,
                                  ThreadRows<const More>... more) {
  float mean[W], gain[W], bias[W];
  if constexpr (Relu) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int channel = at.first_channel + (at.place.active ? at.place.column + w : 0);
      mean[w] = from.mean[channel];
      gain[w] = from.scale[channel] * from.inv_std[channel];
      bias[w] = from.bias[channel];
    }
  }
  const auto pass = [&](int64_t row, const Pack<T, W>& gradient, const Pack<T, W>& value,
                        const Pack<More, W>&... other) {
    float g[W];
#pragma unroll
    for (int w = 0; w < W; ++w) {
      g[w] = widen(gradient.element[w]);
      if constexpr (Relu) {
        if (!(normalized(widen(value.element[w]), mean[w], gain[w], bias[w]) > 0)) g[w] = 0;
      }
    }
    f(row, g, value, other...);
  };
  for_thread_rows(at.place, pass, rows_of_all(from.table, at, from.dy), rows_of_part(at, from.x[at.part]), more...);
}

// Place of a part's partials, (chunks, channels of the part), which follow those of the parts before it.
__device__ inline int64_t first_partial(const PartTable& table, int first_channel) {
  return int64_t(table.all.chunks) * first_channel;
}

// Partials of Σ g and Σ g · (x − mean).
template <int W, bool Relu, typename T>
__global__ void __launch_bounds__(kThreads)
    part_gradient_sums_kernel(const __grid_constant__ GradientOfParts<T> from, Partial* partials) {
  wait_for_dependencies();
  const PartPlace<W> at(from.table);
  float sums[2][W] = {}, mean[W];
#pragma unroll
  for (int w = 0; w < W; ++w) mean[w] = at.place.active ? from.mean[at.first_channel + at.place.column + w] : 0.0f;
  const auto add = [&](int64_t, const float(&g)[W], const Pack<T, W>& value) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      sums[0][w] += g[w];
      sums[1][w] += g[w] * (widen(value.element[w]) - mean[w]);
    }
  };
  for_part_gradient<W, Relu>(from, at, add);
  write_partials(at.columns, at.place, sums, partials + first_partial(from.table, at.first_channel));
}

// dX = scale · inv_std · (g − mean(g) − x̂ · mean(g x̂)) [+ addend], x̂ = (x − mean) · inv_std. reduced_chunks: the
// chunks of the kernel that wrote the partials.
template <int W, bool Relu, typename T>
__global__ void __launch_bounds__(kThreads)
    part_gradient_kernel(const __grid_constant__ GradientOfParts<T> from, int reduced_chunks, const Partial* partials,
                         float* dscale, float* dbias) {
  wait_for_dependencies();
  __shared__ SliceTerms terms;  // dX = gain · g + (x − mean) · slope + bias, the slope below
  __shared__ float slopes[kSliceColumns];
  const PartPlace<W> at(from.table);
  const Place<W>& place = at.place;
  Columns reduced = at.columns;
  reduced.chunks = reduced_chunks;
  float total[2];
  total_partials(reduced, place, partials + int64_t(reduced_chunks) * at.first_channel, total);
  const int t = int(threadIdx.x), channel_of_part = total_column(place);
  if (channel_of_part >= 0) {
    const int own = at.first_channel + channel_of_part;
    const float inv_std = from.inv_std[own], gain = from.scale[own] * inv_std, rows = float(at.columns.rows);
    terms.mean[t] = from.mean[own];
    terms.gain[t] = gain;
    terms.bias[t] = -gain * (total[0] / rows);
    slopes[t] = -gain * inv_std * inv_std * (total[1] / rows);
    if (blockIdx.y == 0) dbias[own] = total[0];
    if (blockIdx.y == 0) dscale[own] = total[1] * inv_std;
  }
  __syncthreads();
  float mean[W], gain[W], bias[W], slope[W];
#pragma unroll
  for (int w = 0; w < W; ++w) {
    const int channel = place.active ? place.lane * W + w : 0;
    mean[w] = terms.mean[channel];
    gain[w] = terms.gain[channel];
    bias[w] = terms.bias[channel];
    slope[w] = slopes[channel];
  }
  const ThreadRows<T> to = rows_of_part(at, from.dx[at.part]);
  const auto write = [&](int64_t row, const float(&g)[W], const Pack<T, W>& value, const auto&... addend) {
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float deviation = widen(value.element[w]) - mean[w];
      float sum = gain[w] * g[w] + (deviation * slope[w] + bias[w]);
      ((sum += widen(addend.element[w])), ...);
      result.element[w] = narrow<T>(sum);
    }
    store(to.at(row), result);
  };
  if (from.addend[at.part] != nullptr) {
    for_part_gradient<W, Relu>(from, at, write, rows_of_part(at, from.addend[at.part]));
  } else {
    for_part_gradient<W, Relu>(from, at, write);
  }
}

}  // namespace arbalest::cuda
