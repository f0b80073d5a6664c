// SPDX-License-Identifier: Apache-2.0

// Rows are all pixels: X is rows × channels in memory. Sums run over chunks of rows (moments_cpu.h).

#include "ops/norm/batch_norm_pair_cpu.h"

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/batch_statistics_cpu.h"

namespace arbalest {
namespace {

// One of the two, each but x by channel.
template <typename T>
struct NormalizedOf {
  const T* x;
  const Wide<T>*mean, *factor, *bias;

  Wide<T> at(int64_t row, int64_t channels, int64_t c) const {
    return (widen(x[row * channels + c]) - mean[c]) * factor[c] + bias[c];
  }
};

template <typename T>
void normalise_pair(const Rows& size, const NormalizedOf<T>& first, const NormalizedOf<T>& second, T* y) {
  const int64_t channels = size.channels;
  parallel_for(size.rows, 4 * channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t c = 0; c < channels; ++c) {
        const Wide<T> sum = first.at(row, channels, c) + second.at(row, channels, c);
        y[row * channels + c] = narrow<T>(sum < 0 ? Wide<T>(0) : sum);  // NaN stays NaN
      }
    }
  });
}

template <typename T>
std::unique_ptr<Kernel> pair_training(const KernelRequest& request) {
  using W = Wide<T>;
  std::vector<BatchStatistics<T>> statistics;
  for (size_t of : {0, 1}) {
    statistics.emplace_back(request, request.has_input(pair_training_partials(of)), kPairChunkPixels[of]);
  }
  auto run = [=](const KernelContext& context) {
    const auto take = [&](size_t of) {
      const auto in = [&](size_t i) { return input<W>(context, pair_training_input(of, i)); };
      const auto out = [&](size_t i) { return output<W>(context, pair_training_statistics(of, i)); };
      const T* x = input<T>(context, pair_training_input(of, 0));
      W* factor = static_cast<W*>(context.workspace) + (of == 0 ? 0 : statistics[0].workspace());
      statistics[of].take(x, statistics[of].given() ? input<W>(context, pair_training_partials(of)) : nullptr,
                          {in(1), in(3), in(4), out(0), out(1), out(2), out(3)}, factor);
      return NormalizedOf<T>{x, out(2), factor, in(2)};
    };
    const NormalizedOf<T> first = take(0), second = take(1);
    normalise_pair(statistics[0].size(), first, second, output<T>(context, 0));
  };
  return make_kernel(run, (statistics[0].workspace() + statistics[1].workspace()) * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> pair_again(const KernelRequest& request) {
  using W = Wide<T>;
  const Rows size = rows_of(request.inputs[0]);
  auto run = [=](const KernelContext& context) {
    const auto take = [&](size_t of) {
      const auto in = [&](size_t i) { return input<W>(context, pair_again_input(of, i)); };
      W* factor = static_cast<W*>(context.workspace) + int64_t(of) * size.channels;
      for (int64_t c = 0; c < size.channels; ++c) factor[c] = in(1)[c] * in(4)[c];
      return NormalizedOf<T>{input<T>(context, pair_again_input(of, 0)), in(3), factor, in(2)};
    };
    const NormalizedOf<T> first = take(0), second = take(1);
    normalise_pair(size, first, second, output<T>(context, 0));
  };
  return make_kernel(run, 2 * size.channels * int64_t(sizeof(W)));
}

// dy + dy2; 0 where Relu has cut y off, unless y is null. dy2 may be null.
template <typename T>
struct GradientOfPair {
  const T *dy, *dy2, *y;

  Wide<T> at(int64_t i) const {
    if (y && !(widen(y[i]) > 0)) return 0;
    return widen(dy[i]) + (dy2 ? widen(dy2[i]) : Wide<T>(0));
  }
};

// One of the two in the backward pass, each but x and dx by channel.
template <typename T>
struct PairGradient {
  const T* x;
  const Wide<T>*scale, *mean, *inv_std;
  T* dx;
  Wide<T>*dscale, *dbias;
};

// Σ g and Σ g · (x − mean) of each channel, into `sums`, which has room for 2 · channels for each chunk.
template <typename T>
void pair_gradient_sums(const Rows& size, const GradientOfPair<T>& gradient, const PairGradient<T>& of, Wide<T>* sums) {
  using W = Wide<T>;
  const int64_t channels = size.channels, chunks = row_chunks(size);
  parallel_for(chunks, 3 * kChunkRows * channels, [=](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      W *sum = sums + 2 * chunk * channels, *product = sum + channels;
      std::fill(sum, sum + 2 * channels, W(0));
      const int64_t first = chunk * kChunkRows;
      for (int64_t row = first; row < first + rows_in_chunk(size, chunk); ++row) {
        for (int64_t c = 0; c < channels; ++c) {
          const W g = gradient.at(row * channels + c);
          sum[c] += g;
          product[c] += g * (widen(of.x[row * channels + c]) - of.mean[c]);
        }
      }
    }
  });
  for (int64_t i = 0; i < 2 * channels; ++i) {
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[2 * chunk * channels + i];
    sums[i] = W(total);
  }
}

// dx = (g − a − (x − mean) · b) · factor of either, by channel.
template <typename W>
struct GradientTerms {
  W *a, *b, *factor;
};

template <typename T>
void take_terms(const Rows& size, const PairGradient<T>& of, const Wide<T>* sums, const GradientTerms<Wide<T>>& terms) {
  const auto rows = Wide<T>(size.rows);
  for (int64_t c = 0; c < size.channels; ++c) {
    const Wide<T> dbias = sums[c], dscale = sums[size.channels + c] * of.inv_std[c];
    if (of.dbias) of.dbias[c] = dbias;
    if (of.dscale) of.dscale[c] = dscale;
    terms.a[c] = dbias / rows;
    terms.b[c] = dscale * of.inv_std[c] / rows;
    terms.factor[c] = of.scale[c] * of.inv_std[c];
  }
}

template <typename T>
std::unique_ptr<Kernel> pair_gradient(const KernelRequest& request) {
  using W = Wide<T>;
  const Rows size = rows_of(request.inputs[0]);
  const int64_t channels = size.channels, sums_size = 2 * row_chunks(size) * channels;
  const bool two = request.has_input(kPairGradSecond), given = request.has_input(kPairGradPartials);
  const bool both_given = request.has_input(kPairGradPartials2);
  const int64_t chunks = given ? request.inputs[kPairGradPartials].shape[0] : 0;
  std::array<bool, 6> has{};
  for (size_t i = 0; i < has.size(); ++i) has[i] = request.has_output(i);
  auto run = [=](const KernelContext& context) {
    const GradientOfPair<T> from{input<T>(context, 0), two ? input<T>(context, kPairGradSecond) : nullptr,
                                 given ? nullptr : input<T>(context, kPairGradY)};
    const auto of = [&](size_t i) {
      const auto in = [&](size_t k) { return input<W>(context, pair_grad_input(i, k)); };
      const auto out = [&](size_t k) {
        const size_t at = pair_grad_output(i, k);
        return has[at] ? output<W>(context, at) : nullptr;
      };
      return PairGradient<T>{input<T>(context, pair_grad_input(i, 0)),   in(1),  in(2), in(3),
                             output<T>(context, pair_grad_output(i, 0)), out(1), out(2)};
    };
    const PairGradient<T> first = of(0), second = of(1);
    W *sums = static_cast<W*>(context.workspace), *next = sums + sums_size;
    const GradientTerms<W> terms{next, next + channels, next + 2 * channels};
    const GradientTerms<W> terms2{next + 3 * channels, next + 4 * channels, next + 5 * channels};
    if (given) {
      add_partials(chunks, channels, input<W>(context, kPairGradPartials), sums);
    } else {
      pair_gradient_sums(size, from, first, sums);
    }
    take_terms(size, first, sums, terms);
    if (both_given) {
      add_partials(chunks, channels, input<W>(context, kPairGradPartials2), sums);
    } else {
      pair_gradient_sums(size, from, second, sums);
    }
    take_terms(size, second, sums, terms2);
    parallel_for(size.rows, 6 * channels, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t at = row * channels + c;
          const W g = from.at(at), x = widen(first.x[at]), x2 = widen(second.x[at]);
          first.dx[at] = narrow<T>((g - terms.a[c] - (x - first.mean[c]) * terms.b[c]) * terms.factor[c]);
          second.dx[at] = narrow<T>((g - terms2.a[c] - (x2 - second.mean[c]) * terms2.b[c]) * terms2.factor[c]);
        }
      }
    });
  };
  return make_kernel(run, (sums_size + 6 * channels) * int64_t(sizeof(W)));
}

}  // namespace

std::unique_ptr<Kernel> batch_norm_pair_training_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return pair_training<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_pair_again_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return pair_again<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_pair_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return pair_gradient<decltype(t)>(request); });
}

}  // namespace arbalest
