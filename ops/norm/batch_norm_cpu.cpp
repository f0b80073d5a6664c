// SPDX-License-Identifier: Apache-2.0

// Rows are all elements of a channel, whatever the rank: X is rows × channels in memory. Sums run over chunks of
// rows (moments_cpu.h).

#include "ops/norm/batch_norm_cpu.h"

#include <cmath>
#include <limits>
#include <optional>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/moments_cpu.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

struct Norm {
  Rows size;
  double epsilon;
  bool relu = false;

  int64_t chunks() const { return row_chunks(size); }
};

// y = [relu]((x − mean) · factor + bias [+ residual]), each per channel.
template <typename T>
void normalise(const Norm& norm, const T* x, const Wide<T>* mean, const Wide<T>* factor, const Wide<T>* bias,
               const T* residual, T* y) {
  using W = Wide<T>;
  const int64_t channels = norm.size.channels;
  const W least = norm.relu ? W(0) : -std::numeric_limits<W>::infinity();
  parallel_for(norm.size.rows, 2 * channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T *from = x + row * channels, *add = residual ? residual + row * channels : nullptr;
      T* to = y + row * channels;
      if (add) {
        for (int64_t c = 0; c < channels; ++c) {
          const W value = (widen(from[c]) - mean[c]) * factor[c] + bias[c] + widen(add[c]);
          to[c] = narrow<T>(value < least ? least : value);
        }
      } else {
        for (int64_t c = 0; c < channels; ++c) {
          const W value = (widen(from[c]) - mean[c]) * factor[c] + bias[c];
          to[c] = narrow<T>(value < least ? least : value);
        }
      }
    }
  });
}

// Condition for Relu to pass the gradient. None: always. Y: if Y > 0. X: if the value that Y was made of, computed
// again from x and the channel's numbers, is above 0.
enum class Mask : uint8_t { None, Y, X };

// Operands of the gradient g of the normalised values. `more` is added to dy unless it is null.
template <typename T>
struct GradientOf {
  const T *dy, *more, *x, *y;
  const Wide<T>*mean, *factor, *bias;  // by channel; the last two with Mask::X

  GradientOf row(int64_t at) const {
    return {dy + at, more ? more + at : nullptr, x + at, y ? y + at : nullptr, mean, factor, bias};
  }
  // Everything is loaded in any case, so that loops over channels vectorise.
  template <Mask kMask, bool kMore>
  Wide<T> at(int64_t c) const {
    Wide<T> gradient = widen(dy[c]);
    if constexpr (kMore) gradient += widen(more[c]);
    if constexpr (kMask == Mask::Y) return widen(y[c]) > 0 ? gradient : Wide<T>(0);
    if constexpr (kMask == Mask::X) {
      return (widen(x[c]) - mean[c]) * factor[c] + bias[c] > 0 ? gradient : Wide<T>(0);
    }
    return gradient;
  }
};

// function(std::integral_constant<Mask>, std::bool_constant: whether there are two gradients)
template <typename Function>
void with_mask(Mask mask, bool more, Function function) {
  const auto masked = [&](auto kind) { more ? function(kind, std::true_type{}) : function(kind, std::false_type{}); };
  switch (mask) {
    case Mask::None: return masked(std::integral_constant<Mask, Mask::None>{});
    case Mask::Y: return masked(std::integral_constant<Mask, Mask::Y>{});
    case Mask::X: return masked(std::integral_constant<Mask, Mask::X>{});
  }
}

// Σ g and Σ g·(x − mean) of each channel. `sums` has room for 2·channels for each chunk; the totals end in its first
// 2·channels.
template <Mask kMask, bool kMore, typename T>
void gradient_sums(const Norm& norm, const GradientOf<T>& gradient, Wide<T>* sums) {
  using W = Wide<T>;
  const int64_t channels = norm.size.channels;
  const W* mean = gradient.mean;
  parallel_for(norm.chunks(), 3 * kChunkRows * channels, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      W *sum = sums + 2 * chunk * channels, *product = sum + channels;
      std::fill(sum, sum + 2 * channels, W(0));
      const int64_t first = chunk * kChunkRows;
      for (int64_t row = first; row < first + rows_in_chunk(norm.size, chunk); ++row) {
        const GradientOf<T> g = gradient.row(row * channels);
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) {
          const W own = g.template at<kMask, kMore>(c);
          sum[c] += own;
          product[c] += own * (widen(g.x[c]) - mean[c]);
        }
      }
    }
  });
  for (int64_t i = 0; i < 2 * channels; ++i) {
    double total = 0;
    for (int64_t chunk = 0; chunk < norm.chunks(); ++chunk) total += sums[2 * chunk * channels + i];
    sums[i] = W(total);
  }
}

// dx = (g − a − (x − mean)·b) · factor; g itself goes to d_residual if that is asked for.
template <Mask kMask, bool kMore, typename T>
void input_gradient(const Norm& norm, const GradientOf<T>& gradient, const Wide<T>* a, const Wide<T>* b,
                    const Wide<T>* factor, T* dx, T* d_residual) {
  const int64_t channels = norm.size.channels;
  const Wide<T>* mean = gradient.mean;
  parallel_for(norm.size.rows, 3 * channels, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * channels;
      const GradientOf<T> g = gradient.row(at);
      T* to = dx + at;
      ARBALEST_INDEPENDENT
      for (int64_t c = 0; c < channels; ++c) {
        const Wide<T> own = g.template at<kMask, kMore>(c);
        to[c] = narrow<T>((own - a[c] - (widen(g.x[c]) - mean[c]) * b[c]) * factor[c]);
      }
      if (!d_residual) continue;
      T* residual = d_residual + at;
      ARBALEST_INDEPENDENT
      for (int64_t c = 0; c < channels; ++c) residual[c] = narrow<T>(g.template at<kMask, kMore>(c));
    }
  });
}

// The workspace, cut into arrays of Wide<T>.
template <typename W>
W* array(const KernelContext& context, int64_t offset) {
  return static_cast<W*>(context.workspace) + offset;
}

// The moments of a channel by those that a convolution has left of each chunk of pixels, (chunks, channels, 2).
template <typename W>
MergedMoments merge_partials(const Rows& size, const PixelChunks& chunks, const W* partials, int64_t channel) {
  MergedMoments merged;
  for (int64_t chunk = 0; chunk < chunks.chunks; ++chunk) {
    const W* moments = partials + (chunk * size.channels + channel) * 2;
    const int64_t rows = std::min(chunks.pixels, size.rows - chunk * chunks.pixels);
    merged.add(double(rows), double(moments[0]), double(moments[1]));
  }
  return merged;
}

// Totals of the partial sums that a convolution has left, (chunks, channels, 2): all first ones, then all second ones.
template <typename W>
void add_partials(int64_t chunks, int64_t channels, const W* partials, W* sums) {
  for (int64_t i = 0; i < 2 * channels; ++i) {
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      total += partials[chunk * channels * 2 + i % channels * 2 + i / channels];
    sums[i] = W(total);
  }
}

// The statistics of a batch: from X, or from partials that a convolution has left.
template <typename T>
class BatchStatistics {
 public:
  using W = Wide<T>;

  // `partials`: that input, which there need not be.
  BatchStatistics(const KernelRequest& request, size_t partials)
      : size_(rows_of(request.inputs[0])),
        epsilon_(float_attribute(request.node, "epsilon")),
        momentum_(float_attribute(request.node, "momentum")),
        partials_(partials),
        given_(request.has_input(partials)) {
    const double rows = double(size_.rows);
    corrected_ = rows / std::max(rows - double(int_attribute(request.node, "correction")), 1.0);
    if (given_) chunks_ = pixel_chunks(request.inputs[0].shape, int_attribute(request.node, "chunk_pixels"));
  }

  int64_t scratch() const { return given_ ? 0 : 2 * row_chunks(size_) * size_.channels; }  // numbers of type W

  // `old`: the inputs with the running mean and, after it, variance; `made`: the outputs with the new ones and, after
  // them, the saved ones.
  void find(const KernelContext& context, size_t old, size_t made, W* scratch) const {
    W *means = scratch, *squares = scratch + this->scratch() / 2;
    if (!given_) chunk_moments(size_, input<T>(context, 0), means, squares);
    for (int64_t c = 0; c < size_.channels; ++c) {
      const MergedMoments moments = given_ ? merge_partials(size_, chunks_, input<W>(context, partials_), c)
                                           : merge_moments(size_, means, squares, c);
      const double old_mean = double(input<W>(context, old)[c]), old_variance = double(input<W>(context, old + 1)[c]);
      output<W>(context, made + 2)[c] = W(moments.mean());
      output<W>(context, made + 3)[c] = W(1 / std::sqrt(moments.variance() + epsilon_));
      output<W>(context, made)[c] = W((1 - momentum_) * old_mean + momentum_ * moments.mean());
      output<W>(context, made + 1)[c] = W((1 - momentum_) * old_variance + momentum_ * moments.variance() * corrected_);
    }
  }

 private:
  Rows size_;
  double epsilon_, momentum_, corrected_ = 1;
  size_t partials_;
  bool given_;
  PixelChunks chunks_ = {};
};

template <typename T>
std::unique_ptr<Kernel> norm_training(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const Norm norm{rows_of(request.inputs[In::X]), 0, int_attribute(request.node, "relu") != 0};
  const BatchStatistics<T> statistics(request, In::Partials);
  const bool residual = request.has_input(In::Residual);
  const int64_t channels = norm.size.channels;
  auto run = [=](const KernelContext& context) {
    const W *mean = output<W>(context, Out::SavedMean), *inv_std = output<W>(context, Out::SavedInvStd);
    W* factor = array<W>(context, 0);
    statistics.find(context, In::Mean, Out::NewMean, factor + channels);
    for (int64_t c = 0; c < channels; ++c) factor[c] = input<W>(context, In::Scale)[c] * inv_std[c];
    normalise(norm, input<T>(context, In::X), mean, factor, input<W>(context, In::Bias),
              residual ? input<T>(context, In::Residual) : nullptr, output<T>(context, Out::Y));
  };
  return make_kernel(run, (channels + statistics.scratch()) * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> norm_statistics(const KernelRequest& request) {
  const BatchStatistics<T> statistics(request, BatchNormStatisticsInput::Partials);
  auto run = [=](const KernelContext& context) {
    statistics.find(context, BatchNormStatisticsInput::Mean, BatchNormStatisticsOutput::NewMean,
                    array<Wide<T>>(context, 0));
  };
  return make_kernel(run, statistics.scratch() * int64_t(sizeof(Wide<T>)));
}

// Y by given statistics. Without an epsilon these are what training has saved, and Y is training's to the same bits;
// otherwise variances.
template <typename T>
std::unique_ptr<Kernel> norm_by_given(const KernelRequest& request, std::optional<double> epsilon) {
  using W = Wide<T>;
  using In = BatchNormInput;
  const Norm norm{rows_of(request.inputs[In::X]), 0, int_attribute(request.node, "relu") != 0};
  const bool residual = request.has_input(In::Residual);
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *spread = input<W>(context, In::Variance);
    W* factor = array<W>(context, 0);
    for (int64_t c = 0; c < norm.size.channels; ++c) {
      factor[c] = epsilon ? scale[c] / std::sqrt(spread[c] + W(*epsilon)) : scale[c] * spread[c];
    }
    normalise(norm, input<T>(context, In::X), input<W>(context, In::Mean), factor, input<W>(context, In::Bias),
              residual ? input<T>(context, In::Residual) : nullptr, output<T>(context, 0));
  };
  return make_kernel(run, norm.size.channels * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> training_grad(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormGradInput;
  using Out = BatchNormGradOutput;
  const Norm norm{rows_of(request.inputs[In::X]), 0, int_attribute(request.node, "relu") != 0};
  const int64_t channels = norm.size.channels, partial = 2 * norm.chunks() * channels;
  const bool residual = request.has_output(Out::Residual), more = request.has_input(In::Second),
             given = request.has_input(In::Partials);
  const int64_t chunks = given ? request.inputs[In::Partials].shape[0] : 0;
  const Mask mask = !norm.relu ? Mask::None : request.has_input(In::Y) ? Mask::Y : Mask::X;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *mean = input<W>(context, In::SavedMean),
            *inv_std = input<W>(context, In::SavedInvStd);
    W *d_scale = output<W>(context, Out::dScale), *d_bias = output<W>(context, Out::dBias);
    W* sums = array<W>(context, 0);
    W *a = array<W>(context, partial), *b = a + channels, *factor = b + channels;
    for (int64_t c = 0; c < channels; ++c) factor[c] = scale[c] * inv_std[c];
    const GradientOf<T> gradient{input<T>(context, In::dY),
                                 more ? input<T>(context, In::Second) : nullptr,
                                 input<T>(context, In::X),
                                 mask == Mask::Y ? input<T>(context, In::Y) : nullptr,
                                 mean,
                                 factor,
                                 mask == Mask::X ? input<W>(context, In::Bias) : nullptr};
    T *dx = output<T>(context, Out::dX), *d_residual = residual ? output<T>(context, Out::Residual) : nullptr;
    with_mask(mask, more, [&](auto kind, auto has_more) {
      if (given) {
        add_partials(chunks, channels, input<W>(context, In::Partials), sums);
      } else {
        gradient_sums<kind.value, has_more.value>(norm, gradient, sums);
      }
      for (int64_t c = 0; c < channels; ++c) {
        const W rows = W(norm.size.rows);
        d_bias[c] = sums[c];
        d_scale[c] = sums[channels + c] * inv_std[c];
        a[c] = d_bias[c] / rows;
        b[c] = d_scale[c] * inv_std[c] / rows;
      }
      input_gradient<kind.value, has_more.value>(norm, gradient, a, b, factor, dx, d_residual);
    });
  };
  return make_kernel(run, (partial + 3 * channels) * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> inference_grad(const KernelRequest& request) {
  using W = Wide<T>;
  const Norm norm{rows_of(request.inputs[1]), float_attribute(request.node, "epsilon")};
  const int64_t channels = norm.size.channels, partial = 2 * norm.chunks() * channels;
  const bool has_scale = request.has_output(1), has_bias = request.has_output(2);
  auto run = [=](const KernelContext& context) {
    const T *dy = input<T>(context, 0), *x = input<T>(context, 1);
    const W *scale = input<W>(context, 2), *mean = input<W>(context, 3), *variance = input<W>(context, 4);
    W *d_scale = has_scale ? output<W>(context, 1) : nullptr, *d_bias = has_bias ? output<W>(context, 2) : nullptr;
    W *sums = array<W>(context, 0), *zero = array<W>(context, partial), *factor = zero + channels;
    const GradientOf<T> gradient{dy, nullptr, x, nullptr, mean, nullptr, nullptr};
    if (d_scale || d_bias) gradient_sums<Mask::None, false>(norm, gradient, sums);
    for (int64_t c = 0; c < channels; ++c) {
      const W inv_std = 1 / std::sqrt(variance[c] + W(norm.epsilon));
      if (d_bias) d_bias[c] = sums[c];
      if (d_scale) d_scale[c] = sums[channels + c] * inv_std;
      zero[c] = 0;
      factor[c] = scale[c] * inv_std;
    }
    input_gradient<Mask::None, false>(norm, gradient, zero, zero, factor, output<T>(context, 0),
                                      static_cast<T*>(nullptr));
  };
  return make_kernel(run, (partial + 2 * channels) * int64_t(sizeof(W)));
}

}  // namespace

std::unique_ptr<Kernel> batch_norm_training_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return norm_training<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_statistics_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return norm_statistics<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_again_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype,
                           [&](auto t) { return norm_by_given<decltype(t)>(request, std::nullopt); });
}
std::unique_ptr<Kernel> batch_norm_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return training_grad<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_inference_cpu(const KernelRequest& request) {
  const double epsilon = float_attribute(request.node, "epsilon");
  return dispatch_floating(request.inputs[0].dtype,
                           [&](auto t) { return norm_by_given<decltype(t)>(request, epsilon); });
}
std::unique_ptr<Kernel> batch_norm_inference_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return inference_grad<decltype(t)>(request); });
}

}  // namespace arbalest
