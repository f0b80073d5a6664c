// SPDX-License-Identifier: Apache-2.0
#pragma once
// The loops of batch norms on CPUs, over parts: tensors that follow each other along the channels. A batch norm of one
// tensor has one part. Vectors of numbers are of all channels, those of tensors that are written as a whole as well.

#include <array>
#include <limits>
#include <type_traits>

#include "ops/norm/batch_norms.h"
#include "ops/norm/moments_cpu.h"

namespace arbalest {

// The channels of each part.
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
  // One part, the input at a place.
  Parts(const KernelRequest& request, size_t place) : Parts(request, 1, [place](size_t) { return place; }) {}
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
  constexpr int64_t kBlockRows = 16;  // taken part by part: what is written to stays in the cache
  for (int64_t block = begin; block < end; block += kBlockRows) {
    const int64_t behind = std::min(end, block + kBlockRows);
    for (size_t i = 0; i < parts.count; ++i) {
      for (int64_t row = block; row < behind; ++row) function(i, row);
    }
  }
}

// A pointer to what lies further on; null stays null.
template <typename T>
T* from_there(T* pointer, int64_t at) {
  return pointer ? pointer + at : nullptr;
}

template <typename T>
struct Normalised {
  OfParts<const T*> x;
  const Wide<T>*mean, *factor, *bias;
  const T* residual;  // null: none
};

// y = [relu]((x − mean) · factor + bias [+ residual]), each per channel.
template <typename T>
void normalise(const Parts& parts, bool relu, const Normalised<T>& of, T* y) {
  using W = Wide<T>;
  const W least = relu ? W(0) : -std::numeric_limits<W>::infinity();
  parallel_for(parts.size.rows, 2 * parts.size.channels, [&](int64_t begin, int64_t end) {
    for_part_rows(parts, begin, end, [&](size_t i, int64_t row) {
      const int64_t first = parts.first[i], channels = parts.channels(i), at = row * parts.size.channels + first;
      const T *from = of.x[i] + row * channels, *add = from_there(of.residual, at);
      T* to = y + at;
      const W *mean = of.mean + first, *factor = of.factor + first, *bias = of.bias + first;
      if (add) {
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) {
          const W value = (widen(from[c]) - mean[c]) * factor[c] + bias[c] + widen(add[c]);
          to[c] = narrow<T>(value < least ? least : value);
        }
      } else {
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) {
          const W value = (widen(from[c]) - mean[c]) * factor[c] + bias[c];
          to[c] = narrow<T>(value < least ? least : value);
        }
      }
    });
  });
}

// Condition for Relu to pass the gradient. None: always. Y: if Y > 0. X: if the value that Y was made of, computed
// again from x and the channel's numbers, is above 0.
enum class Mask : uint8_t { None, Y, X };

// Operands of the gradient g of the normalised values, by channel. `more` is added to dy unless it is null.
template <typename T>
struct GradientOfRow {
  const T *dy, *more, *y, *x;
  const Wide<T>*mean, *factor, *bias;  // the last two with Mask::X

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

template <typename T>
struct GradientOf {
  const T *dy, *more, *y;
  OfParts<const T*> x;
  const Wide<T>*mean, *factor, *bias;

  GradientOfRow<T> row(const Parts& parts, size_t i, int64_t row) const {
    const int64_t first = parts.first[i], at = row * parts.size.channels + first;
    return {dy + at,      from_there(more, at),      from_there(y, at),      x[i] + row * parts.channels(i),
            mean + first, from_there(factor, first), from_there(bias, first)};
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

// Σ g and Σ g·(x − mean) of each channel. `sums` has room for 2·channels for each chunk of rows; the totals end in its
// first 2·channels.
template <Mask kMask, bool kMore, typename T>
void gradient_sums(const Parts& parts, const GradientOf<T>& gradient, Wide<T>* sums) {
  using W = Wide<T>;
  const int64_t all = parts.size.channels, chunks = row_chunks(parts.size);
  parallel_for(chunks, 3 * kChunkRows * all, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      std::fill(sums + 2 * chunk * all, sums + 2 * (chunk + 1) * all, W(0));
      const int64_t first_row = chunk * kChunkRows;
      for_part_rows(parts, first_row, first_row + rows_in_chunk(parts.size, chunk), [&](size_t i, int64_t row) {
        const GradientOfRow<T> g = gradient.row(parts, i, row);
        const int64_t channels = parts.channels(i);
        W *sum = sums + 2 * chunk * all + parts.first[i], *product = sum + all;
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) {
          const W own = g.template at<kMask, kMore>(c);
          sum[c] += own;
          product[c] += own * (widen(g.x[c]) - g.mean[c]);
        }
      });
    }
  });
  for (int64_t i = 0; i < 2 * all; ++i) {
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += double(sums[2 * chunk * all + i]);
    sums[i] = W(total);
  }
}

// dx = (g − a − (x − mean)·b) · factor [+ addend], which may be the same memory; g itself goes to d_residual.
template <typename T>
struct InputGradient {
  const Wide<T>*a, *b, *factor;
  OfParts<const T*> addends;  // null: none
  OfParts<T*> dx;
  T* d_residual;  // null: not asked for
};

template <Mask kMask, bool kMore, typename T>
void input_gradient(const Parts& parts, const GradientOf<T>& gradient, const InputGradient<T>& made) {
  using W = Wide<T>;
  parallel_for(parts.size.rows, 3 * parts.size.channels, [&](int64_t begin, int64_t end) {
    for_part_rows(parts, begin, end, [&](size_t i, int64_t row) {
      const int64_t first = parts.first[i], channels = parts.channels(i);
      const GradientOfRow<T> g = gradient.row(parts, i, row);
      const W *a = made.a + first, *b = made.b + first, *factor = made.factor + first;
      const auto value = [&](int64_t c) {
        return (g.template at<kMask, kMore>(c) - a[c] - (widen(g.x[c]) - g.mean[c]) * b[c]) * factor[c];
      };
      T* to = made.dx[i] + row * channels;
      if (const T* addend = from_there(made.addends[i], row * channels)) {
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(value(c) + widen(addend[c]));
      } else {
        ARBALEST_INDEPENDENT
        for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(value(c));
      }
      T* residual = from_there(made.d_residual, row * parts.size.channels + first);
      if (!residual) return;
      ARBALEST_INDEPENDENT
      for (int64_t c = 0; c < channels; ++c) residual[c] = narrow<T>(g.template at<kMask, kMore>(c));
    });
  });
}

// Gradients of scale and bias, and the input gradient's a and b, by the totals of gradient_sums().
template <typename W>
void by_totals(const Rows& size, const W* sums, const W* inv_std, W* d_scale, W* d_bias, W* a, W* b) {
  const W rows = W(size.rows);
  for (int64_t c = 0; c < size.channels; ++c) {
    d_bias[c] = sums[c];
    d_scale[c] = sums[size.channels + c] * inv_std[c];
    a[c] = d_bias[c] / rows;
    b[c] = d_scale[c] * inv_std[c] / rows;
  }
}

}  // namespace arbalest
