// SPDX-License-Identifier: Apache-2.0

// Kernels of batch norms, of one tensor or of parts. Rows are all elements of a channel, whatever the rank: X is rows ×
// channels in memory. Sums run over chunks of rows (moments_cpu.h).

#include "ops/norm/batch_norm_cpu.h"

#include <cmath>
#include <optional>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/normalise_cpu.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

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

  explicit BatchStatistics(const KernelRequest& request)
      : size_(rows_of(request.inputs[0])),
        epsilon_(float_attribute(request.node, "epsilon")),
        momentum_(float_attribute(request.node, "momentum")),
        given_(request.has_input(BatchNormInput::Partials)) {
    const double rows = double(size_.rows);
    corrected_ = rows / std::max(rows - double(int_attribute(request.node, "correction")), 1.0);
    if (given_)
      chunks_ = pixel_chunks(request.inputs[BatchNormInput::X].shape, int_attribute(request.node, "chunk_pixels"));
  }

  int64_t scratch() const { return given_ ? 0 : 2 * row_chunks(size_) * size_.channels; }  // numbers of type W

  // Writes the new running mean and variance, and the saved ones.
  void find(const KernelContext& context, W* scratch) const {
    using In = BatchNormInput;
    using Out = BatchNormOutput;
    W *means = scratch, *squares = scratch + this->scratch() / 2;
    if (!given_) chunk_moments(size_, input<T>(context, In::X), means, squares);
    for (int64_t c = 0; c < size_.channels; ++c) {
      const MergedMoments moments = given_ ? merge_partials(size_, chunks_, input<W>(context, In::Partials), c)
                                           : merge_moments(size_, means, squares, c);
      const double mean = double(input<W>(context, In::Mean)[c]), variance = double(input<W>(context, In::Variance)[c]);
      output<W>(context, Out::SavedMean)[c] = W(moments.mean());
      output<W>(context, Out::SavedInvStd)[c] = W(1 / std::sqrt(moments.variance() + epsilon_));
      output<W>(context, Out::NewMean)[c] = W((1 - momentum_) * mean + momentum_ * moments.mean());
      output<W>(context, Out::NewVariance)[c] =
          W((1 - momentum_) * variance + momentum_ * moments.variance() * corrected_);
    }
  }

 private:
  Rows size_;
  double epsilon_, momentum_, corrected_ = 1;
  bool given_;
  PixelChunks chunks_ = {};
};

template <typename T>
std::unique_ptr<Kernel> norm_training(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const Parts parts(request, In::X);
  const BatchStatistics<T> statistics(request);
  const bool relu = int_attribute(request.node, "relu") != 0, residual = request.has_input(In::Residual);
  const int64_t channels = parts.size.channels;
  auto run = [=](const KernelContext& context) {
    const W *mean = output<W>(context, Out::SavedMean), *inv_std = output<W>(context, Out::SavedInvStd);
    W* factor = array<W>(context, 0);
    statistics.find(context, factor + channels);
    for (int64_t c = 0; c < channels; ++c) factor[c] = input<W>(context, In::Scale)[c] * inv_std[c];
    const Normalised<T> of{{input<T>(context, In::X)},
                           mean,
                           factor,
                           input<W>(context, In::Bias),
                           residual ? input<T>(context, In::Residual) : nullptr};
    normalise(parts, relu, of, output<T>(context, Out::Y));
  };
  return make_kernel(run, (channels + statistics.scratch()) * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> channel_statistics(const KernelRequest& request) {
  using W = Wide<T>;
  const Rows size = rows_of(request.inputs[0]);
  const int64_t partial = row_chunks(size) * size.channels;
  auto run = [=](const KernelContext& context) {
    W *means = array<W>(context, 0), *squares = means + partial, *statistics = output<W>(context, 0);
    chunk_moments(size, input<T>(context, 0), means, squares);
    for (int64_t c = 0; c < size.channels; ++c) {
      const MergedMoments moments = merge_moments(size, means, squares, c);
      statistics[2 * c] = W(moments.mean());
      statistics[2 * c + 1] = W(moments.squares());
    }
  };
  return make_kernel(run, 2 * partial * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> parts_training(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormInput;
  using Out = BatchNormOutput;
  const Parts parts(request, training_parts(request.inputs.size()), training_part);
  const double epsilon = float_attribute(request.node, "epsilon"), momentum = float_attribute(request.node, "momentum");
  const double correction = double(int_attribute(request.node, "correction"));
  const bool relu = int_attribute(request.node, "relu") != 0;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *bias = input<W>(context, In::Bias);
    const W *old_mean = input<W>(context, In::Mean), *old_variance = input<W>(context, In::Variance);
    W *new_mean = output<W>(context, Out::NewMean), *new_variance = output<W>(context, Out::NewVariance);
    W *saved_mean = output<W>(context, Out::SavedMean), *saved_inv_std = output<W>(context, Out::SavedInvStd);
    W* factor = array<W>(context, 0);
    const double rows = double(parts.size.rows), divisor = std::max(rows - correction, 1.0);
    for (size_t i = 0; i < parts.count; ++i) {
      const W* statistics = input<W>(context, training_statistics(i));
      for (int64_t c = parts.first[i]; c < parts.first[i + 1]; ++c, statistics += 2) {
        const double mean = double(statistics[0]), squares = double(statistics[1]);
        saved_mean[c] = W(mean);
        saved_inv_std[c] = W(1 / std::sqrt(squares / rows + epsilon));
        factor[c] = scale[c] * saved_inv_std[c];
        new_mean[c] = W((1 - momentum) * double(old_mean[c]) + momentum * mean);
        new_variance[c] = W((1 - momentum) * double(old_variance[c]) + momentum * squares / divisor);
      }
    }
    const Normalised<T> of{inputs_of<T>(context, parts, training_part), saved_mean, factor, bias, nullptr};
    normalise(parts, relu, of, output<T>(context, Out::Y));
  };
  return make_kernel(run, parts.size.channels * int64_t(sizeof(W)));
}

// Y by given statistics, of the parts at `places`. Without an epsilon these are what training has saved, and Y is
// training's to the same bits; otherwise variances.
template <typename T, typename Place>
std::unique_ptr<Kernel> norm_by_given(const KernelRequest& request, size_t count, Place place, bool residual,
                                      std::optional<double> epsilon) {
  using W = Wide<T>;
  using In = BatchNormInput;
  const Parts parts(request, count, place);
  const bool relu = int_attribute(request.node, "relu") != 0;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *spread = input<W>(context, In::Variance);
    W* factor = array<W>(context, 0);
    for (int64_t c = 0; c < parts.size.channels; ++c) {
      factor[c] = epsilon ? scale[c] / std::sqrt(spread[c] + W(*epsilon)) : scale[c] * spread[c];
    }
    const Normalised<T> of{inputs_of<T>(context, parts, place), input<W>(context, In::Mean), factor,
                           input<W>(context, In::Bias), residual ? input<T>(context, In::Residual) : nullptr};
    normalise(parts, relu, of, output<T>(context, 0));
  };
  return make_kernel(run, parts.size.channels * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> training_grad(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormGradInput;
  using Out = BatchNormGradOutput;
  const Parts parts(request, In::X);
  const int64_t channels = parts.size.channels, partial = 2 * row_chunks(parts.size) * channels;
  const bool residual = request.has_output(Out::Residual), more = request.has_input(In::Second),
             given = request.has_input(In::Partials);
  const int64_t chunks = given ? request.inputs[In::Partials].shape[0] : 0;
  const bool relu = int_attribute(request.node, "relu") != 0;
  const Mask mask = !relu ? Mask::None : request.has_input(In::Y) ? Mask::Y : Mask::X;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *inv_std = input<W>(context, In::SavedInvStd);
    W* sums = array<W>(context, 0);
    W *a = array<W>(context, partial), *b = a + channels, *factor = b + channels;
    for (int64_t c = 0; c < channels; ++c) factor[c] = scale[c] * inv_std[c];
    const GradientOf<T> gradient{input<T>(context, In::dY),
                                 more ? input<T>(context, In::Second) : nullptr,
                                 mask == Mask::Y ? input<T>(context, In::Y) : nullptr,
                                 {input<T>(context, In::X)},
                                 input<W>(context, In::SavedMean),
                                 factor,
                                 mask == Mask::X ? input<W>(context, In::Bias) : nullptr};
    const InputGradient<T> made{
        a, b, factor, {}, {output<T>(context, Out::dX)}, residual ? output<T>(context, Out::Residual) : nullptr};
    with_mask(mask, more, [&](auto kind, auto has_more) {
      if (given) {
        add_partials(chunks, channels, input<W>(context, In::Partials), sums);
      } else {
        gradient_sums<kind.value, has_more.value>(parts, gradient, sums);
      }
      by_totals(parts.size, sums, inv_std, output<W>(context, Out::dScale), output<W>(context, Out::dBias), a, b);
      input_gradient<kind.value, has_more.value>(parts, gradient, made);
    });
  };
  return make_kernel(run, (partial + 3 * channels) * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> parts_gradient(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormPartsGradInput;
  const Parts parts(request, gradient_parts(request.inputs.size()), gradient_part);
  const bool relu = request.has_input(In::Bias);
  const int64_t all = parts.size.channels, partial = 2 * row_chunks(parts.size) * all;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *inv_std = input<W>(context, In::SavedInvStd);
    W *sums = array<W>(context, 0), *a = sums + partial, *b = a + all, *factor = b + all;
    for (int64_t c = 0; c < all; ++c) factor[c] = scale[c] * inv_std[c];
    const GradientOf<T> gradient{input<T>(context, In::dY),
                                 nullptr,
                                 nullptr,
                                 inputs_of<T>(context, parts, gradient_part),
                                 input<W>(context, In::SavedMean),
                                 factor,
                                 relu ? input<W>(context, In::Bias) : nullptr};
    InputGradient<T> made{a, b, factor, inputs_of<T>(context, parts, gradient_addend), {}, nullptr};
    for (size_t i = 0; i < parts.count; ++i) made.dx[i] = output<T>(context, part_gradient(i));
    with_mask(relu ? Mask::X : Mask::None, false, [&](auto kind, auto) {
      gradient_sums<kind.value, false>(parts, gradient, sums);
      by_totals(parts.size, sums, inv_std, output<W>(context, BatchNormPartsGradOutput::dScale),
                output<W>(context, BatchNormPartsGradOutput::dBias), a, b);
      input_gradient<kind.value, false>(parts, gradient, made);
    });
  };
  return make_kernel(run, (partial + 3 * all) * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> inference_grad(const KernelRequest& request) {
  using W = Wide<T>;
  using In = BatchNormInferenceGradInput;
  using Out = BatchNormGradOutput;
  const Parts parts(request, 1);
  const double epsilon = float_attribute(request.node, "epsilon");
  const int64_t channels = parts.size.channels, partial = 2 * row_chunks(parts.size) * channels;
  const bool has_scale = request.has_output(Out::dScale), has_bias = request.has_output(Out::dBias);
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *variance = input<W>(context, In::Variance);
    W *d_scale = has_scale ? output<W>(context, Out::dScale) : nullptr,
      *d_bias = has_bias ? output<W>(context, Out::dBias) : nullptr;
    W *sums = array<W>(context, 0), *zero = array<W>(context, partial), *factor = zero + channels;
    const GradientOf<T> gradient{input<T>(context, In::dY),   nullptr, nullptr, {input<T>(context, In::X)},
                                 input<W>(context, In::Mean), nullptr, nullptr};
    if (d_scale || d_bias) gradient_sums<Mask::None, false>(parts, gradient, sums);
    for (int64_t c = 0; c < channels; ++c) {
      const W inv_std = 1 / std::sqrt(variance[c] + W(epsilon));
      if (d_bias) d_bias[c] = sums[c];
      if (d_scale) d_scale[c] = sums[channels + c] * inv_std;
      zero[c] = 0;
      factor[c] = scale[c] * inv_std;
    }
    const InputGradient<T> made{zero, zero, factor, {}, {output<T>(context, Out::dX)}, nullptr};
    input_gradient<Mask::None, false>(parts, gradient, made);
  };
  return make_kernel(run, (partial + 2 * channels) * int64_t(sizeof(W)));
}

template <typename Place>
std::unique_ptr<Kernel> by_given(const KernelRequest& request, size_t count, Place place, bool residual,
                                 std::optional<double> epsilon) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) {
    return norm_by_given<decltype(t)>(request, count, place, residual, epsilon);
  });
}

std::unique_ptr<Kernel> one_by_given(const KernelRequest& request, std::optional<double> epsilon) {
  const auto place = [](size_t) { return size_t{BatchNormInput::X}; };
  return by_given(request, 1, place, request.has_input(BatchNormInput::Residual), epsilon);
}

std::unique_ptr<Kernel> parts_by_given(const KernelRequest& request, std::optional<double> epsilon) {
  return by_given(request, inference_parts(request.inputs.size()), inference_part, false, epsilon);
}

}  // namespace

std::unique_ptr<Kernel> batch_norm_training_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return norm_training<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_again_cpu(const KernelRequest& request) {
  return one_by_given(request, std::nullopt);
}
std::unique_ptr<Kernel> batch_norm_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return training_grad<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_inference_cpu(const KernelRequest& request) {
  return one_by_given(request, float_attribute(request.node, "epsilon"));
}
std::unique_ptr<Kernel> batch_norm_inference_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return inference_grad<decltype(t)>(request); });
}
std::unique_ptr<Kernel> channel_statistics_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return channel_statistics<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_parts_training_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return parts_training<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_parts_again_cpu(const KernelRequest& request) {
  return parts_by_given(request, std::nullopt);
}
std::unique_ptr<Kernel> batch_norm_parts_inference_cpu(const KernelRequest& request) {
  return parts_by_given(request, float_attribute(request.node, "epsilon"));
}
std::unique_ptr<Kernel> batch_norm_parts_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return parts_gradient<decltype(t)>(request); });
}

}  // namespace arbalest
