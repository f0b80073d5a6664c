// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of two batch norms whose sum goes through Relu. They work as those of one batch norm (batch_norm.cuh), with
// both tensors in every pass.

#include "ops/norm/batch_norm.cuh"

namespace arbalest::cuda {

// One of the two in training: its input, and partials of it over `reduced`.
template <typename T>
struct NormalizedOf {
  const T* x;
  const Partial* partials;
  Columns reduced;
  Statistics statistics;
};

template <int W, typename T>
__device__ void normalize_pair_rows(const Columns& columns, const Place<W>& place, const SliceTerms (&terms)[2],
                                    const T* x, const T* x2, T* y) {
  const OwnTerms<W> first(place, terms[0]), second(place, terms[1]);
  for_rows(
      columns, place,
      [&](int64_t at, const Pack<T, W>& pack, const Pack<T, W>& other) {
        Pack<T, W> result;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const float sum = first(widen(pack.element[w]), w) + second(widen(other.element[w]), w);
          result.element[w] = narrow<T>(sum < 0 ? 0.0f : sum);  // NaN stays NaN
        }
        store(y + at, result);
      },
      x, x2);
}

// The means of both and their sums of squared deviations, as merge_partials() has them of one; partials of both are
// read at once.
template <int W, typename T>
__device__ void merge_pair(const NormalizedOf<T>& first, const NormalizedOf<T>& second, const Place<W>& place,
                           Partial (&merged)[2]) {
  __shared__ float scratch[4 * kThreads];
  float sums[4] = {};
  const auto add = [&](const NormalizedOf<T>& of, float* to) {
    const ChunkRows rows(of.reduced);
    for_partials(of.reduced, place, of.partials, [&](int i, int channel, Partial partial) {
      const float count = rows.of(i);
      const float deviation = partial.x - of.partials[channel].x;
      to[0] += count * deviation;
      to[1] += partial.y + count * deviation * deviation;
    });
  };
  add(first, sums);
  add(second, sums + 2);
  fold_groups(place.slice_columns, scratch, sums);
  const int channel = channel_of(total_column(place), place.channels);
  if (channel < 0) return;
  const auto merge = [&](const NormalizedOf<T>& of, const float* from) {
    const float shift = from[0] / float(of.reduced.tensor_rows());
    return make_float2(of.partials[channel].x + shift, fmaxf(from[1] - from[0] * shift, 0.0f));
  };
  merged[0] = merge(first, sums);
  merged[1] = merge(second, sums + 2);
}

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_pair_kernel(Columns columns, NormalizedOf<T> first, NormalizedOf<T> second, T* y) {
  __shared__ SliceTerms terms[2];
  const Place<W> place(columns);
  wait_for_dependencies();
  const int column = total_column(place), channel = channel_of(column, place.channels);
  const Affine affine(first.statistics, channel), affine2(second.statistics, channel);
  Partial merged[2];
  merge_pair(first, second, place, merged);
  if (column >= 0) {
    const float rows = float(columns.tensor_rows());
    const bool stores = place.stores(column);
    take_statistics(first.statistics, affine, merged[0], rows, channel, stores, terms[0]);
    take_statistics(second.statistics, affine2, merged[1], rows, channel, stores, terms[1]);
  }
  __syncthreads();
  normalize_pair_rows<W>(columns, place, terms, first.x, second.x, y);
}

// One of the two batch norms, with statistics that training has saved.
template <typename T>
struct SavedOf {
  const T* x;
  const float *scale, *bias, *mean, *inv_std;
};

// Computes normalize_pair_kernel's result again, from saved statistics.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_pair_again_kernel(Columns columns, SavedOf<T> first, SavedOf<T> second, T* y) {
  __shared__ SliceTerms terms[2];
  const Place<W> place(columns);
  const int channel = channel_of(total_column(place), place.channels);
  wait_for_dependencies();
  if (channel >= 0) {
    take_saved(first.scale, first.bias, first.mean, first.inv_std, channel, terms[0]);
    take_saved(second.scale, second.bias, second.mean, second.inv_std, channel, terms[1]);
  }
  __syncthreads();
  normalize_pair_rows<W>(columns, place, terms, first.x, second.x, y);
}

// Partials of Σ g and of Σ g · (x − mean) with each of the two. g itself is stored in `kept`, which may be dy.
template <int W, bool kTwo, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    pair_gradient_sums_kernel(Columns columns, PairGradientOf<T> from, T* kept, Partial* partials, Partial* partials2) {
  wait_for_dependencies();
  const Place<W> place(columns);
  float sums[3][W] = {}, mean[W], mean2[W];
  place.for_channels([&](int w, int channel) {
    mean[w] = place.active ? from.mean[channel] : 0.0f;
    mean2[w] = place.active ? from.mean2[channel] : 0.0f;
  });
  using Packs = Pack<T, W>;
  const auto add = [&](int64_t at, const Packs& gradient, const Packs& more, const Packs& result, const Packs& value,
                       const Packs& value2) {
    Packs passed;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      float g = widen(gradient.element[w]);
      if constexpr (kTwo) g += widen(more.element[w]);
      if (!(widen(result.element[w]) > 0)) g = 0;
      sums[0][w] += g;
      sums[1][w] += g * (widen(value.element[w]) - mean[w]);
      sums[2][w] += g * (widen(value2.element[w]) - mean2[w]);
      passed.element[w] = narrow<T>(g);
    }
    store(kept + at, passed);
  };
  if constexpr (kTwo) {
    for_rows(columns, place, add, from.dy, from.dy2, from.y, from.x, from.x2);
  } else {
    const auto one = [&](int64_t at, const Packs& gradient, const Packs& result, const Packs& value,
                         const Packs& value2) { add(at, gradient, gradient, result, value, value2); };
    for_rows(columns, place, one, from.dy, from.y, from.x, from.x2);
  }
  float total[3];
  sum_rows(place, sums, total);
  const int column = total_column(place);
  if (column < 0) return;
  const int64_t at = int64_t(blockIdx.y) * columns.count + column;
  partials[at] = make_float2(total[0], total[1]);
  partials2[at] = make_float2(total[0], total[2]);
}

// One of the two batch norms in the backward pass: partials of its gradient sums, in the layout `reduced`, and its
// gradients. dscale and dbias may be null.
template <typename T>
struct PairGradient {
  const T* x;
  const float *scale, *mean, *inv_std;
  const Partial* partials;
  Columns reduced;
  T* dx;
  float *dscale, *dbias;
};

// Numbers that make a slice's gradients: dX = gain · g + slope · x + bias.
struct PairSlopes {
  float gain[kSliceColumns], slope[kSliceColumns], bias[kSliceColumns];
};

// The terms of a thread's W channels, in registers.
template <int W>
struct OwnSlopes {
  float gain[W], slope[W], bias[W];

  __device__ OwnSlopes(const Place<W>& place, const PairSlopes& of) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const int channel = place.active ? place.lane * W + w : 0;
      gain[w] = of.gain[channel];
      slope[w] = of.slope[channel];
      bias[w] = of.bias[channel];
    }
  }
  __device__ float operator()(float g, float x, int w) const {
    return fmaf(gain[w], g, fmaf(slope[w], x, bias[w]));
  }
};

// g: the tensor that pair_gradient_sums_kernel has kept, or that a convolution's gradient has left. Either dx may share
// its memory with g, and the first dx with the first x.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads, 2)
    pair_gradient_kernel(Columns columns, const T* g, PairGradient<T> first, PairGradient<T> second) {
  __shared__ GradientTerms terms;
  __shared__ PairSlopes slopes[2];
  __shared__ float scratch[4 * kThreads];
  const Place<W> place(columns);
  wait_for_dependencies();
  const int column = total_column(place), channel = channel_of(column, place.channels), t = int(threadIdx.x);
  const ChannelNumbers numbers(first.mean, first.inv_std, first.scale, channel);
  const ChannelNumbers numbers2(second.mean, second.inv_std, second.scale, channel);
  float totals[4] = {};  // partials of both are read at once
  const auto add = [&](const PairGradient<T>& of, float* to) {
    for_partials(of.reduced, place, of.partials, [&](int, int, Partial partial) {
      to[0] += partial.x;
      to[1] += partial.y;
    });
  };
  add(first, totals);
  add(second, totals + 2);
  fold_groups(place.slice_columns, scratch, totals);
  const auto take = [&](const PairGradient<T>& of, const ChannelNumbers& own, const float* from, PairSlopes& to) {
    const float total[2] = {from[0], from[1]};
    const float rows = float(columns.tensor_rows());
    take_gradient_terms(own, total, rows, channel, place.stores(column), of.dscale, of.dbias, terms);
    to.gain[t] = terms.of.gain[t];
    to.slope[t] = terms.slope[t];
    to.bias[t] = fmaf(-terms.of.mean[t], terms.slope[t], terms.of.bias[t]);
  };
  if (column >= 0) {
    take(first, numbers, totals, slopes[0]);
    take(second, numbers2, totals + 2, slopes[1]);
  }
  __syncthreads();
  const OwnSlopes<W> made(place, slopes[0]), made2(place, slopes[1]);
  for_rows(
      columns, place,
      [&](int64_t at, const Pack<T, W>& gradient, const Pack<T, W>& value, const Pack<T, W>& value2) {
        Pack<T, W> result, result2;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const float passed = widen(gradient.element[w]);
          result.element[w] = narrow<T>(made(passed, widen(value.element[w]), w));
          result2.element[w] = narrow<T>(made2(passed, widen(value2.element[w]), w));
        }
        store(first.dx + at, result);
        store(second.dx + at, result2);
      },
      g, first.x, second.x);
}

}  // namespace arbalest::cuda
