// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of batch normalisation over a channels-last (rows, channels) matrix, with residual and ReLU fused. Training
// takes two launches each way: one writes partial sums of chunks of rows, the other sums those and writes the rows.

#include "ops/cuda/columns.cuh"
#include "ops/norm/gradient_of.h"

namespace arbalest::cuda {

// Partial of a chunk: its mean and its sum of squared deviations from that mean; or two plain sums in the backward
// pass.
using Partial = float2;

__device__ inline int64_t rows_in_chunk(const Columns& columns, int64_t chunk) {
  return min(columns.chunk_rows, columns.rows - chunk * columns.chunk_rows);
}

// Rows of the tensor that each partial is of.
struct ChunkRows {
  float rows, last_rows;
  int last;  // the first partial of the last chunk

  __device__ explicit ChunkRows(const Columns& reduced)
      : rows(float(rows_in_chunk(reduced, 0))),
        last_rows(float(rows_in_chunk(reduced, reduced.chunks - 1))),
        last((reduced.chunks - 1) * reduced.fold) {}
  __device__ float of(int partial) const { return partial < last ? rows : last_rows; }
};

// partials: (chunks, columns). Sums are taken relative to the chunk's first row, so that a mean far from zero costs no
// precision.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) statistics_kernel(Columns columns, const T* x, Partial* partials) {
  wait_for_dependencies();
  const Place<W> place(columns);
  float sums[2][W] = {};
  if (place.active) {
    const Pack<T, W> first = load<W>(x + place.begin * columns.count + place.column);
    for_rows(
        columns, place,
        [&](int64_t, const Pack<T, W>& pack) {
#pragma unroll
          for (int w = 0; w < W; ++w) {
            const float deviation = widen(pack.element[w]) - widen(first.element[w]);
            sums[0][w] += deviation;
            sums[1][w] += deviation * deviation;
          }
        },
        x);
  }
  float total[2];
  sum_rows(place, sums, total);
  const int column = total_column(place);
  if (column >= 0) {
    const float shift = widen(x[place.begin * columns.count + column]);
    const float mean = total[0] / float(place.end - place.begin);
    partials[int64_t(blockIdx.y) * columns.count + column] =
        make_float2(shift + mean, fmaxf(total[1] - total[0] * mean, 0.0f));
  }
}

// Normalised value. The gradient computes it again to ask whether it is above 0, and must get the same result.
__device__ inline float normalized(float x, float mean, float gain, float bias) {
  return fmaf(x - mean, gain, bias);
}

// Numbers that normalise the channels of a slice: y = (x − mean) · gain + bias.
struct SliceTerms {
  float mean[kSliceColumns], gain[kSliceColumns], bias[kSliceColumns];
};

// The numbers for a thread's W channels, in registers.
template <int W>
struct OwnTerms {
  float mean[W], gain[W], bias[W];

  __device__ OwnTerms(const Place<W>& place, const SliceTerms& terms) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int column = place.active ? place.lane * W + w : 0;
      mean[w] = terms.mean[column];
      gain[w] = terms.gain[column];
      bias[w] = terms.bias[column];
    }
  }
  __device__ float operator()(float x, int w) const {
    return normalized(x, mean[w], gain[w], bias[w]);
  }
};

template <int W, bool Relu, bool Residual, typename T>
__device__ void normalize_rows(const Columns& columns, const Place<W>& place, const SliceTerms& terms, const T* x,
                               const T* residual, T* y) {
  const OwnTerms<W> normalize(place, terms);
  const auto activate = [](float value) { return Relu && value < 0 ? 0.0f : value; };  // NaN stays NaN
  if constexpr (Residual) {
    for_rows(
        columns, place,
        [&](int64_t at, const Pack<T, W>& pack, const Pack<T, W>& added) {
          Pack<T, W> result;
#pragma unroll
          for (int w = 0; w < W; ++w) {
            result.element[w] = narrow<T>(activate(normalize(widen(pack.element[w]), w) + widen(added.element[w])));
          }
          store(y + at, result);
        },
        x, residual);
  } else {
    for_rows(
        columns, place,
        [&](int64_t at, const Pack<T, W>& pack) {
          Pack<T, W> result;
#pragma unroll
          for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(activate(normalize(widen(pack.element[w]), w)));
          store(y + at, result);
        },
        x);
  }
}

// (C) each; the saved and new ones may be null, and new ones the memory of the running ones.
struct Statistics {
  const float *scale, *bias, *running_mean, *running_var;
  float *new_mean, *new_var, *saved_mean, *saved_inv_std;
  float epsilon, momentum;
  float correction;  // rows minus the divisor of the running variance: 0 or 1
};

// All threads of the block call it. Thread t < slice_columns leaves with the mean of column t's channel, and with the
// sum of squared deviations from it.
template <int W>
__device__ Partial merge_partials(const Columns& reduced, const Place<W>& place, const Partial* partials) {
  __shared__ float scratch[2 * kThreads];
  float sums[2] = {};  // of deviations from the first chunk's mean, and of their squares
  const ChunkRows rows(reduced);
  for_partials(reduced, place, partials, [&](int i, int channel, Partial partial) {
    const float count = rows.of(i), deviation = partial.x - partials[channel].x;
    sums[0] += count * deviation;
    sums[1] += partial.y + count * deviation * deviation;
  });
  fold_groups(place.slice_columns, scratch, sums);
  const int column = total_column(place);
  if (column < 0) return make_float2(0, 0);
  const float shift = sums[0] / float(reduced.tensor_rows());
  return make_float2(partials[channel_of(column, place.channels)].x + shift, fmaxf(sums[1] - sums[0] * shift, 0.0f));
}

// Scale and bias of a channel. Threads read them before they add up partials, so that nothing waits for them later.
struct Affine {
  float scale = 0, bias = 0;

  __device__ Affine(const Statistics& statistics, int channel) {
    if (channel >= 0) scale = statistics.scale[channel], bias = statistics.bias[channel];
  }
};

// Stores a channel's statistics by the mean and the sum of squared deviations, `merged`, of `rows` rows.
__device__ inline void store_statistics(const Statistics& statistics, Partial merged, float rows, float inv_std,
                                        int channel) {
  const float keep = 1.0f - statistics.momentum;
  const float variance = merged.y / fmaxf(rows - statistics.correction, 1.0f);
  if (statistics.saved_mean != nullptr) statistics.saved_mean[channel] = merged.x;
  if (statistics.saved_inv_std != nullptr) statistics.saved_inv_std[channel] = inv_std;
  if (statistics.new_mean != nullptr) {
    statistics.new_mean[channel] = keep * statistics.running_mean[channel] + statistics.momentum * merged.x;
  }
  if (statistics.new_var != nullptr) {
    statistics.new_var[channel] = keep * statistics.running_var[channel] + statistics.momentum * variance;
  }
}

__device__ inline float inverse_deviation(Partial merged, float rows, float epsilon) {
  return 1.0f / sqrtf(merged.y / rows + epsilon);
}

// Thread t sets the terms of column t of its slice, which has `channel` of all, and stores the statistics if asked to.
// `merged`: the mean and the sum of squared deviations of `rows` rows.
__device__ inline void take_statistics(const Statistics& statistics, const Affine& affine, Partial merged, float rows,
                                       int channel, bool stores, SliceTerms& terms) {
  const int t = int(threadIdx.x);
  const float inv_std = inverse_deviation(merged, rows, statistics.epsilon);
  terms.mean[t] = merged.x;
  terms.gain[t] = affine.scale * inv_std;
  terms.bias[t] = affine.bias;
  if (stores) store_statistics(statistics, merged, rows, inv_std, channel);
}

// Stores the statistics alone. A block takes a slice of the channels; `columns` has no more than one chunk.
template <int W>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(Columns columns, Columns reduced, Statistics statistics, const Partial* partials) {
  const Place<W> place(columns);
  wait_for_dependencies();
  const int channel = total_column(place);
  const Partial merged = merge_partials(reduced, place, partials);
  if (channel < 0 || channel >= place.channels) return;
  const float rows = float(columns.tensor_rows());
  store_statistics(statistics, merged, rows, inverse_deviation(merged, rows, statistics.epsilon), channel);
}

// `reduced`: the layout that wrote the partials; `columns`: this kernel's, with the same slices.
template <int W, bool Relu, bool Residual, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(Columns columns, Columns reduced, Statistics statistics, const Partial* partials, const T* x,
                     const T* residual, T* y) {
  __shared__ SliceTerms terms;
  const Place<W> place(columns);
  wait_for_dependencies();
  const int column = total_column(place), channel = channel_of(column, place.channels);
  const Affine affine(statistics, channel);
  const Partial merged = merge_partials(reduced, place, partials);
  if (column >= 0) {
    take_statistics(statistics, affine, merged, float(columns.tensor_rows()), channel, place.stores(column), terms);
  }
  __syncthreads();
  normalize_rows<W, Relu, Residual>(columns, place, terms, x, residual, y);
}

// Thread t sets the terms of column t of its slice, which has `channel` of all, from statistics that take_statistics()
// saved.
__device__ inline void take_saved(const float* scale, const float* bias, const float* saved_mean,
                                  const float* saved_inv_std, int channel, SliceTerms& terms) {
  const int t = int(threadIdx.x);
  terms.mean[t] = saved_mean[channel];
  terms.gain[t] = scale[channel] * saved_inv_std[channel];
  terms.bias[t] = bias[channel];
}

// Computes normalize_kernel's result again, from saved statistics.
template <int W, bool Relu, bool Residual, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_again_kernel(Columns columns, const T* x, const float* scale, const float* bias, const float* saved_mean,
                           const float* saved_inv_std, const T* residual, T* y) {
  __shared__ SliceTerms terms;
  const Place<W> place(columns);
  const int channel = channel_of(total_column(place), place.channels);
  wait_for_dependencies();
  if (channel >= 0) take_saved(scale, bias, saved_mean, saved_inv_std, channel, terms);
  __syncthreads();
  normalize_rows<W, Relu, Residual>(columns, place, terms, x, residual, y);
}

template <int W, bool Relu, bool Residual, typename T>
__global__ void __launch_bounds__(kThreads)
    inference_kernel(Columns columns, const T* x, const float* scale, const float* bias, const float* mean,
                     const float* var, float epsilon, const T* residual, T* y) {
  __shared__ SliceTerms terms;
  const Place<W> place(columns);
  const int t = int(threadIdx.x), channel = channel_of(total_column(place), place.channels);
  if (channel >= 0) {
    terms.mean[t] = mean[channel];
    terms.gain[t] = scale[channel] / sqrtf(var[channel] + epsilon);
    terms.bias[t] = bias[channel];
  }
  __syncthreads();
  normalize_rows<W, Relu, Residual>(columns, place, terms, x, residual, y);
}

// Sums of a block's chunk of rows, as its partials.
template <int W>
__device__ void write_partials(const Columns& columns, const Place<W>& place, const float (&sums)[2][W],
                               Partial* partials) {
  float total[2];
  sum_rows(place, sums, total);
  const int column = total_column(place);
  if (column >= 0) partials[int64_t(blockIdx.y) * columns.count + column] = make_float2(total[0], total[1]);
}

// function(std::integral_constant<Mask>, std::bool_constant: whether there are two gradients)
template <typename Function>
void with_mask(Mask mask, bool two, Function function) {
  const auto masked = [&](auto kind) { two ? function(kind, std::true_type{}) : function(kind, std::false_type{}); };
  switch (mask) {
    case Mask::None: return masked(std::integral_constant<Mask, Mask::None>{});
    case Mask::Y: return masked(std::integral_constant<Mask, Mask::Y>{});
    case Mask::X: return masked(std::integral_constant<Mask, Mask::X>{});
  }
}

// f(offset in elements, W elements of g, pack of x there) for the thread's rows of the chunk.
template <int W, Mask kMask, bool kTwo, typename T, typename Function>
__device__ void for_gradient_rows(const Columns& columns, const Place<W>& place, const GradientOf<T>& from,
                                  Function f) {
  float mean[W], gain[W], bias[W];
  if constexpr (kMask == Mask::X) {
    place.for_channels([&](int w, int channel) {
      if (!place.active) channel = 0;
      mean[w] = from.mean[channel];
      gain[w] = from.scale[channel] * from.inv_std[channel];
      bias[w] = from.bias[channel];
    });
  }
  using Packs = Pack<T, W>;
  // `more` is dY2, `result` Y; others if these are not read.
  const auto pass = [&](int64_t at, const Packs& gradient, const Packs& more, const Packs& value, const Packs& result) {
    float g[W];
#pragma unroll
    for (int w = 0; w < W; ++w) {
      g[w] = widen(gradient.element[w]);
      if constexpr (kTwo) g[w] += widen(more.element[w]);
      bool passes = true;
      if constexpr (kMask == Mask::Y) passes = widen(result.element[w]) > 0;
      if constexpr (kMask == Mask::X) passes = normalized(widen(value.element[w]), mean[w], gain[w], bias[w]) > 0;
      if (!passes) g[w] = 0;
    }
    f(at, g, value);
  };
  if constexpr (kTwo && kMask == Mask::Y) {
    for_rows(columns, place, pass, from.dy, from.dy2, from.x, from.y);
  } else if constexpr (kTwo) {
    const auto three = [&](int64_t at, const Packs& gradient, const Packs& more, const Packs& value) {
      pass(at, gradient, more, value, value);
    };
    for_rows(columns, place, three, from.dy, from.dy2, from.x);
  } else if constexpr (kMask == Mask::Y) {
    const auto three = [&](int64_t at, const Packs& gradient, const Packs& value, const Packs& result) {
      pass(at, gradient, gradient, value, result);
    };
    for_rows(columns, place, three, from.dy, from.x, from.y);
  } else {
    const auto two = [&](int64_t at, const Packs& gradient, const Packs& value) {
      pass(at, gradient, gradient, value, value);
    };
    for_rows(columns, place, two, from.dy, from.x);
  }
}

// Partials of Σ g and Σ g · (x − mean). With `kKept`, g is written as well: it is the residual's gradient, and spares
// the next kernel making it again.
template <int W, Mask kMask, bool kTwo, bool kKept, typename T>
__global__ void __launch_bounds__(kThreads)
    gradient_sums_kernel(Columns columns, GradientOf<T> from, T* kept, Partial* partials) {
  wait_for_dependencies();
  const Place<W> place(columns);
  float sums[2][W] = {}, mean[W];
  place.for_channels([&](int w, int channel) { mean[w] = place.active ? from.mean[channel] : 0.0f; });
  const auto add = [&](int64_t at, const float(&g)[W], const Pack<T, W>& value) {
    Pack<T, W> gradient;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      sums[0][w] += g[w];
      sums[1][w] += g[w] * (widen(value.element[w]) - mean[w]);
      gradient.element[w] = narrow<T>(g[w]);
    }
    if constexpr (kKept) store(kept + at, gradient);
  };
  for_gradient_rows<W, kMask, kTwo>(columns, place, from, add);
  write_partials(columns, place, sums, partials);
}

// Adds up a slice's partials: thread t < slice_columns returns with the totals of the channel of column t.
template <int W>
__device__ void total_partials(const Columns& reduced, const Place<W>& place, const Partial* partials,
                               float (&total)[2]) {
  __shared__ float scratch[2 * kThreads];
  total[0] = total[1] = 0;
  for_partials(reduced, place, partials, [&](int, int, Partial partial) {
    total[0] += partial.x;
    total[1] += partial.y;
  });
  fold_groups(place.slice_columns, scratch, total);
}

// Numbers that make a slice's gradient: dX = gain · g + (x − mean) · slope + bias.
struct GradientTerms {
  SliceTerms of;
  float slope[kSliceColumns];
};

// Numbers of a channel. Threads read them before they add up partials, so that nothing waits for them later.
struct ChannelNumbers {
  float mean = 0, inv_std = 0, scale = 0;

  __device__ ChannelNumbers(const float* means, const float* inv_stds, const float* scales, int channel) {
    if (channel >= 0) mean = means[channel], inv_std = inv_stds[channel], scale = scales[channel];
  }
};

// Sets the terms of dX = scale · inv_std · (g − mean(g) − x̂ · mean(g x̂)), x̂ = (x − mean) · inv_std. Thread t sets
// those of its slice's column t, which has `channel` of all. `total`: Σ g and Σ g · (x − mean). dscale and dbias are
// stored if asked for and not null.
__device__ inline void take_gradient_terms(const ChannelNumbers& of, const float (&total)[2], float rows, int channel,
                                           bool stores, float* dscale, float* dbias, GradientTerms& terms) {
  const int t = int(threadIdx.x);
  const float deviation = of.inv_std, gain = of.scale * deviation;
  terms.of.mean[t] = of.mean;
  terms.of.gain[t] = gain;
  terms.of.bias[t] = -gain * (total[0] / rows);
  terms.slope[t] = -gain * deviation * deviation * (total[1] / rows);
  if (stores && dbias != nullptr) dbias[channel] = total[0];
  if (stores && dscale != nullptr) dscale[channel] = total[1] * deviation;
}

// The terms of a thread's W channels, in registers.
template <int W>
struct OwnGradientTerms {
  float mean[W], gain[W], bias[W], slope[W];

  __device__ OwnGradientTerms(const Place<W>& place, const GradientTerms& terms) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int channel = place.active ? place.lane * W + w : 0;
      mean[w] = terms.of.mean[channel];
      gain[w] = terms.of.gain[channel];
      bias[w] = terms.of.bias[channel];
      slope[w] = terms.slope[channel];
    }
  }
  __device__ float operator()(float g, float x, int w) const {
    return gain[w] * g + ((x - mean[w]) * slope[w] + bias[w]);
  }
};

// dx may be null.
template <int W, Mask kMask, bool kTwo, typename T>
__global__ void __launch_bounds__(kThreads) gradient_kernel(Columns columns, Columns reduced, const Partial* partials,
                                                            GradientOf<T> from, T* dx, float* dscale, float* dbias) {
  __shared__ GradientTerms terms;
  const Place<W> place(columns);
  float total[2];
  wait_for_dependencies();
  const int column = total_column(place), own = channel_of(column, place.channels);
  const ChannelNumbers numbers(from.mean, from.inv_std, from.scale, own);
  total_partials(reduced, place, partials, total);
  if (column >= 0) {
    take_gradient_terms(numbers, total, float(columns.tensor_rows()), own, place.stores(column), dscale, dbias, terms);
  }
  __syncthreads();
  if (dx == nullptr) return;
  const OwnGradientTerms<W> made(place, terms);
  const auto write = [&](int64_t at, const float(&g)[W], const Pack<T, W>& value) {
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(made(g[w], widen(value.element[w]), w));
    store(dx + at, result);
  };
  for_gradient_rows<W, kMask, kTwo>(columns, place, from, write);
}

// Frozen statistics: dX = dY · scale · inv_std, and the partials of dscale and dbias. dx may be null.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    inference_gradient_kernel(Columns columns, const T* dy, const T* x, const float* scale, const float* means,
                              const float* vars, float epsilon, T* dx, Partial* partials) {
  const Place<W> place(columns);
  float sums[2][W] = {}, mean[W], gain[W];
  place.for_channels([&](int w, int channel) {
    mean[w] = place.active ? means[channel] : 0.0f;
    gain[w] = place.active ? scale[channel] / sqrtf(vars[channel] + epsilon) : 0.0f;
  });
  for_rows(
      columns, place,
      [&](int64_t at, const Pack<T, W>& gradient, const Pack<T, W>& value) {
        Pack<T, W> result;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const float g = widen(gradient.element[w]);
          sums[0][w] += g;
          sums[1][w] += g * (widen(value.element[w]) - mean[w]);
          result.element[w] = narrow<T>(g * gain[w]);
        }
        if (dx != nullptr) store(dx + at, result);
      },
      dy, x);
  write_partials(columns, place, sums, partials);
}

// One block a slice: dbias and dscale from their partials.
template <int W>
__global__ void __launch_bounds__(kThreads)
    parameter_gradients_kernel(Columns reduced, const Partial* partials, const float* vars, float epsilon,
                               float* dscale, float* dbias) {
  const Place<W> place(reduced);
  float total[2];
  total_partials(reduced, place, partials, total);
  const int channel = total_column(place);
  if (channel >= 0 && channel < place.channels) {
    if (dbias != nullptr) dbias[channel] = total[0];
    if (dscale != nullptr) dscale[channel] = total[1] / sqrtf(vars[channel] + epsilon);
  }
}

}  // namespace arbalest::cuda
