// SPDX-License-Identifier: Apache-2.0

// Rows are all elements of a channel, whatever the rank: X is rows × channels in memory. Sums run over chunks of
// rows (moments_cpu.h).

#include "ops/norm/batch_norm_cpu.h"

#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/batch_statistics_cpu.h"

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

template <typename T>
std::unique_ptr<Kernel> norm_training(const KernelRequest& request) {
  using W = Wide<T>;
  const BatchStatistics<T> statistics(request, request.has_input(6), "chunk_pixels");
  const Norm norm{statistics.size(), 0, int_attribute(request.node, "relu") != 0};
  const bool residual = request.has_input(5);
  auto run = [=](const KernelContext& context) {
    W* factor = array<W>(context, 0);
    statistics.take(input<T>(context, 0), statistics.given() ? input<W>(context, 6) : nullptr,
                    {input<W>(context, 1), input<W>(context, 3), input<W>(context, 4), output<W>(context, 1),
                     output<W>(context, 2), output<W>(context, 3), output<W>(context, 4)},
                    factor);
    normalise(norm, input<T>(context, 0), output<W>(context, 3), factor, input<W>(context, 2),
              residual ? input<T>(context, 5) : nullptr, output<T>(context, 0));
  };
  return make_kernel(run, statistics.workspace() * int64_t(sizeof(W)));
}

// Y of training once more, to the same bits: the same sums by the same function, of what training has saved.
template <typename T>
std::unique_ptr<Kernel> norm_again(const KernelRequest& request) {
  using W = Wide<T>;
  const Norm norm{rows_of(request.inputs[0]), 0, int_attribute(request.node, "relu") != 0};
  const bool residual = request.has_input(5);
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, 1), *bias = input<W>(context, 2), *mean = input<W>(context, 3),
            *inv_std = input<W>(context, 4);
    W* factor = array<W>(context, 0);
    for (int64_t c = 0; c < norm.size.channels; ++c) factor[c] = scale[c] * inv_std[c];
    normalise(norm, input<T>(context, 0), mean, factor, bias, residual ? input<T>(context, 5) : nullptr,
              output<T>(context, 0));
  };
  return make_kernel(run, norm.size.channels * int64_t(sizeof(W)));
}

template <typename T>
std::unique_ptr<Kernel> training_grad(const KernelRequest& request) {
  using W = Wide<T>;
  const Norm norm{rows_of(request.inputs[1]), 0, int_attribute(request.node, "relu") != 0};
  const int64_t channels = norm.size.channels, partial = 2 * norm.chunks() * channels;
  const bool residual = request.has_output(3), more = request.has_input(7), given = request.has_input(8);
  const int64_t chunks = given ? request.inputs[8].shape[0] : 0;
  const Mask mask = !norm.relu ? Mask::None : request.has_input(2) ? Mask::Y : Mask::X;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, 3), *mean = input<W>(context, 4), *inv_std = input<W>(context, 5);
    W *d_scale = output<W>(context, 1), *d_bias = output<W>(context, 2);
    W* sums = array<W>(context, 0);
    W *a = array<W>(context, partial), *b = a + channels, *factor = b + channels;
    for (int64_t c = 0; c < channels; ++c) factor[c] = scale[c] * inv_std[c];
    const GradientOf<T> gradient{input<T>(context, 0),
                                 more ? input<T>(context, 7) : nullptr,
                                 input<T>(context, 1),
                                 mask == Mask::Y ? input<T>(context, 2) : nullptr,
                                 mean,
                                 factor,
                                 mask == Mask::X ? input<W>(context, 6) : nullptr};
    T *dx = output<T>(context, 0), *d_residual = residual ? output<T>(context, 3) : nullptr;
    with_mask(mask, more, [&](auto kind, auto has_more) {
      if (given) {
        add_partials(chunks, channels, input<W>(context, 8), sums);
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
std::unique_ptr<Kernel> norm_inference(const KernelRequest& request) {
  using W = Wide<T>;
  const Norm norm{rows_of(request.inputs[0]), float_attribute(request.node, "epsilon"),
                  int_attribute(request.node, "relu") != 0};
  const bool residual = request.has_input(5);
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, 1), *bias = input<W>(context, 2), *mean = input<W>(context, 3),
            *variance = input<W>(context, 4);
    W* factor = array<W>(context, 0);
    for (int64_t c = 0; c < norm.size.channels; ++c) factor[c] = scale[c] / std::sqrt(variance[c] + W(norm.epsilon));
    normalise(norm, input<T>(context, 0), mean, factor, bias, residual ? input<T>(context, 5) : nullptr,
              output<T>(context, 0));
  };
  return make_kernel(run, norm.size.channels * int64_t(sizeof(W)));
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
std::unique_ptr<Kernel> batch_norm_again_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return norm_again<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return training_grad<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_inference_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return norm_inference<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_inference_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return inference_grad<decltype(t)>(request); });
}

}  // namespace arbalest
