#include "ops/norm/batch_norm_parts_cpu.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "ops/norm/batch_norms.h"
#include "ops/norm/moments_cpu.h"

namespace arbalest {
namespace {

constexpr int64_t kBlockRows = 16;  // taken part by part: what is written to stays in the cache

// Which channels of all are whose. Vectors of numbers are of all channels.
struct Parts {
  Rows size{0, 0};  // all channels
  size_t count = 0;
  std::array<int64_t, kMostParts + 1> first{};  // channel of each part; all of them in the end

  // `at(i)`: the place of part i among the inputs.
  template <typename Place>
  Parts(const KernelRequest& request, size_t parts, Place at) : count(parts) {
    for (size_t i = 0; i < count; ++i) {
      const Rows part = rows_of(request.inputs[at(i)]);
      size.rows = part.rows;
      first[i + 1] = first[i] + part.channels;
    }
    size.channels = first[count];
  }
  int64_t channels(size_t i) const { return first[i + 1] - first[i]; }
};

template <typename Pointer>
using OfParts = std::array<Pointer, kMostParts>;

template <typename T, typename Place>
OfParts<const T*> inputs_of(const KernelContext& context, const Parts& parts, Place at) {
  OfParts<const T*> pointers{};
  for (size_t i = 0; i < parts.count; ++i) pointers[i] = input<T>(context, at(i));
  return pointers;
}

// function(part, row) for all rows from `begin` to `end`, a block of them part by part.
template <typename Function>
void for_part_rows(const Parts& parts, int64_t begin, int64_t end, Function function) {
  for (int64_t block = begin; block < end; block += kBlockRows) {
    const int64_t behind = std::min(end, block + kBlockRows);
    for (size_t i = 0; i < parts.count; ++i) {
      for (int64_t row = block; row < behind; ++row) function(i, row);
    }
  }
}

// y = [relu]((x − mean) · factor + bias).
template <typename T>
void normalise_parts(const Parts& parts, bool relu, const OfParts<const T*>& x, const Wide<T>* means,
                     const Wide<T>* factors, const Wide<T>* biases, T* y) {
  using W = Wide<T>;
  const W least = relu ? W(0) : -std::numeric_limits<W>::infinity();
  parallel_for(parts.size.rows, 2 * parts.size.channels, [&](int64_t begin, int64_t end) {
    for_part_rows(parts, begin, end, [&](size_t i, int64_t row) {
      const int64_t first = parts.first[i], channels = parts.channels(i);
      const T* from = x[i] + row * channels;
      T* to = y + row * parts.size.channels + first;
      const W *mean = means + first, *factor = factors + first, *bias = biases + first;
      ARBALEST_INDEPENDENT
      for (int64_t c = 0; c < channels; ++c) {
        const W value = (widen(from[c]) - mean[c]) * factor[c] + bias[c];
        to[c] = narrow<T>(value < least ? least : value);
      }
    });
  });
}

template <typename T>
std::unique_ptr<Kernel> statistics(const KernelRequest& request) {
  using W = Wide<T>;
  const Rows size = rows_of(request.inputs[0]);
  const int64_t partial = row_chunks(size) * size.channels;
  auto run = [=](const KernelContext& context) {
    W *means = static_cast<W*>(context.workspace), *squares = means + partial, *statistics = output<W>(context, 0);
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
  const Parts parts(request, training_parts(request.inputs.size()), training_part);
  const double epsilon = float_attribute(request.node, "epsilon"), momentum = float_attribute(request.node, "momentum");
  const double correction = double(int_attribute(request.node, "correction"));
  const bool relu = int_attribute(request.node, "relu") != 0;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, 1), *bias = input<W>(context, 2);
    const W *old_mean = input<W>(context, 3), *old_variance = input<W>(context, 4);
    W *new_mean = output<W>(context, 1), *new_variance = output<W>(context, 2);
    W *saved_mean = output<W>(context, 3), *saved_inv_std = output<W>(context, 4);
    W* factor = static_cast<W*>(context.workspace);
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
    normalise_parts(parts, relu, inputs_of<T>(context, parts, training_part), saved_mean, factor, bias,
                    output<T>(context, 0));
  };
  return make_kernel(run, parts.size.channels * int64_t(sizeof(W)));
}

// Y by given statistics. Without an epsilon these are what training has saved, and Y is training's to the same bits;
// otherwise variances.
template <typename T>
std::unique_ptr<Kernel> parts_by_given(const KernelRequest& request, std::optional<double> epsilon) {
  using W = Wide<T>;
  using In = BatchNormInput;
  const Parts parts(request, inference_parts(request.inputs.size()), inference_part);
  const bool relu = int_attribute(request.node, "relu") != 0;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, In::Scale), *spread = input<W>(context, In::Variance);
    W* factor = static_cast<W*>(context.workspace);
    for (int64_t c = 0; c < parts.size.channels; ++c) {
      factor[c] = epsilon ? scale[c] / std::sqrt(spread[c] + W(*epsilon)) : scale[c] * spread[c];
    }
    normalise_parts(parts, relu, inputs_of<T>(context, parts, inference_part), input<W>(context, In::Mean), factor,
                    input<W>(context, In::Bias), output<T>(context, 0));
  };
  return make_kernel(run, parts.size.channels * int64_t(sizeof(W)));
}

// Operands of the gradient g of the normalised values: dY, or 0 where Relu cut the value off. mean, factor and bias are
// of all channels.
template <typename T>
struct GradientOfParts {
  const T* dy;
  OfParts<const T*> x;
  const Wide<T>*mean, *factor, *bias;

  // g of channel c in a row of part i. dy_row and x_row begin with the part's first channel, which is `first` of all.
  template <bool kRelu>
  Wide<T> at(const T* dy_row, const T* x_row, int64_t first, int64_t c) const {
    const Wide<T> gradient = widen(dy_row[c]);
    if constexpr (!kRelu) return gradient;
    return (widen(x_row[c]) - mean[first + c]) * factor[first + c] + bias[first + c] > 0 ? gradient : Wide<T>(0);
  }
};

// Σ g and Σ g·(x − mean) of each channel. `sums` has room for 2·channels for each chunk of rows; the totals end in its
// first 2·channels.
template <bool kRelu, typename T>
void parts_gradient_sums(const Parts& parts, const GradientOfParts<T>& gradient, Wide<T>* sums) {
  using W = Wide<T>;
  const int64_t all = parts.size.channels, chunks = row_chunks(parts.size);
  parallel_for(chunks, 3 * kChunkRows * all, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      W *sum = sums + 2 * chunk * all, *product = sum + all;
      std::fill(sum, sum + 2 * all, W(0));
      const int64_t first_row = chunk * kChunkRows;
      const auto add = [&](size_t i, int64_t row) {
        const int64_t first = parts.first[i], channels = parts.channels(i);
        const T *dy = gradient.dy + row * all + first, *x = gradient.x[i] + row * channels;
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) {
          const W own = gradient.template at<kRelu>(dy, x, first, c);
          sum[first + c] += own;
          product[first + c] += own * (widen(x[c]) - gradient.mean[first + c]);
        }
      };
      for_part_rows(parts, first_row, first_row + rows_in_chunk(parts.size, chunk), add);
    }
  });
  for (int64_t i = 0; i < 2 * all; ++i) {
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += double(sums[2 * chunk * all + i]);
    sums[i] = W(total);
  }
}

// dx = (g − a − (x − mean)·b) · factor [+ addend], which may be the same memory.
template <bool kRelu, typename T>
void input_gradients(const Parts& parts, const GradientOfParts<T>& gradient, const Wide<T>* a, const Wide<T>* b,
                     const OfParts<const T*>& addends, const OfParts<T*>& dx) {
  using W = Wide<T>;
  const int64_t all = parts.size.channels;
  parallel_for(parts.size.rows, 3 * all, [&](int64_t begin, int64_t end) {
    for_part_rows(parts, begin, end, [&](size_t i, int64_t row) {
      const int64_t first = parts.first[i], channels = parts.channels(i);
      const T *dy = gradient.dy + row * all + first, *x = gradient.x[i] + row * channels;
      const auto value = [&](int64_t c) {
        const W own = gradient.template at<kRelu>(dy, x, first, c);
        const W deviation = widen(x[c]) - gradient.mean[first + c];
        return (own - a[first + c] - deviation * b[first + c]) * gradient.factor[first + c];
      };
      T* to = dx[i] + row * channels;
      if (addends[i]) {
        const T* addend = addends[i] + row * channels;
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(value(c) + widen(addend[c]));
      } else {
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(value(c));
      }
    });
  });
}

template <typename T>
std::unique_ptr<Kernel> parts_gradient(const KernelRequest& request) {
  using W = Wide<T>;
  const Parts parts(request, gradient_parts(request.inputs.size()), gradient_part);
  const bool relu = request.has_input(4);
  const int64_t all = parts.size.channels, partial = 2 * row_chunks(parts.size) * all;
  auto run = [=](const KernelContext& context) {
    const W *scale = input<W>(context, 1), *mean = input<W>(context, 2), *inv_std = input<W>(context, 3);
    W *d_scale = output<W>(context, 0), *d_bias = output<W>(context, 1);
    W *sums = static_cast<W*>(context.workspace), *a = sums + partial, *b = a + all, *factor = b + all;
    for (int64_t c = 0; c < all; ++c) factor[c] = scale[c] * inv_std[c];
    const GradientOfParts<T> of{input<T>(context, 0), inputs_of<T>(context, parts, gradient_part), mean, factor,
                                relu ? input<W>(context, 4) : nullptr};
    const OfParts<const T*> addends = inputs_of<T>(context, parts, gradient_addend);
    OfParts<T*> dx{};
    for (size_t i = 0; i < parts.count; ++i) dx[i] = output<T>(context, part_gradient(i));
    const auto write = [&](auto with_relu) {
      parts_gradient_sums<with_relu.value>(parts, of, sums);
      for (int64_t c = 0; c < all; ++c) {
        const W rows = W(parts.size.rows);
        d_bias[c] = sums[c];
        d_scale[c] = sums[all + c] * inv_std[c];
        a[c] = d_bias[c] / rows;
        b[c] = d_scale[c] * inv_std[c] / rows;
      }
      input_gradients<with_relu.value>(parts, of, a, b, addends, dx);
    };
    relu ? write(std::true_type{}) : write(std::false_type{});
  };
  return make_kernel(run, (partial + 3 * all) * int64_t(sizeof(W)));
}

}  // namespace

std::unique_ptr<Kernel> channel_statistics_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return statistics<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_parts_training_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return parts_training<decltype(t)>(request); });
}
std::unique_ptr<Kernel> batch_norm_parts_again_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype,
                           [&](auto t) { return parts_by_given<decltype(t)>(request, std::nullopt); });
}
std::unique_ptr<Kernel> batch_norm_parts_inference_cpu(const KernelRequest& request) {
  const double epsilon = float_attribute(request.node, "epsilon");
  return dispatch_floating(request.inputs[0].dtype,
                           [&](auto t) { return parts_by_given<decltype(t)>(request, epsilon); });
}
std::unique_ptr<Kernel> batch_norm_parts_grad_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto t) { return parts_gradient<decltype(t)>(request); });
}

}  // namespace arbalest
