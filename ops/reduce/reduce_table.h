// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reductions, a line each: the line gives the operator, its gradient, their kernels and their samples. The file is
// compiled for the CPU (W: double, and int64_t for integers) and for CUDA (W: float and int64_t). Gradients are
// elementwise operators, whose formulas are text for GPUs (ops/math/elementwise_table.h).

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/math/elementwise_table.h"

namespace arbalest::reductions {

// How terms are combined, and what no terms at all combine to. Max and Min keep a NaN.
struct Sum {
  template <typename T, typename W>
  static constexpr W empty() {
    return 0;
  }
  template <typename W>
  ARBALEST_HOST_DEVICE static W combine(W a, W b) {
    return a + b;
  }
};
struct Prod {
  template <typename T, typename W>
  static constexpr W empty() {
    return 1;
  }
  template <typename W>
  ARBALEST_HOST_DEVICE static W combine(W a, W b) {
    return a * b;
  }
};
struct Max {
  template <typename T, typename W>
  static constexpr W empty() {
    if constexpr (std::is_integral_v<T>) {
      return std::numeric_limits<T>::lowest();
    } else {
      return -std::numeric_limits<W>::infinity();
    }
  }
  template <typename W>
  ARBALEST_HOST_DEVICE static W combine(W a, W b) {
    return b > a || b != b ? b : a;
  }
};
struct Min {
  template <typename T, typename W>
  static constexpr W empty() {
    if constexpr (std::is_integral_v<T>) {
      return std::numeric_limits<T>::max();
    } else {
      return std::numeric_limits<W>::infinity();
    }
  }
  template <typename W>
  ARBALEST_HOST_DEVICE static W combine(W a, W b) {
    return b < a || b != b ? b : a;
  }
};

enum class Integers : uint8_t { None, Signed, All };  // Signed: int32 and int64; All: bool and uint8 too

// ROW(name, documentation, combination, integers, low, high, term, value, gradient)
//   name:       ONNX's; the gradient's operator is arbalest.<name>Grad
//   integers:   the integer types that it takes, in addition to all floating types
//   low, high:  range that inputs of the samples are drawn from
//   term:       formula in x. If it mentions `c`, that is the greatest of the x, so that exp() does not overflow.
//   value:      formula in a, the combination of the terms, in their number n and in c
//   gradient:   formula in dy, x, y (the value) and n; none: reduce.cpp makes it of other operators. Max and Min divide
//               dy by the number of elements that are equal to y.
// clang-format off
#define ARBALEST_REDUCTIONS(ROW) \
  ROW(ReduceL1, "the sum of |data|", Sum, Signed, -1, 1, abs(x), a, x < 0 ? -dy : x > 0 ? dy : W(0)) \
  ROW(ReduceL2, "the square root of the sum of data²", Sum, None, -1, 1, x * x, sqrt(a), y > 0 ? dy * x / y : W(0)) \
  ROW(ReduceLogSum, "the logarithm of the sum of data", Sum, None, 0.1, 2, x, log(a), dy * exp(-y)) \
  ROW(ReduceLogSumExp, "the logarithm of the sum of exp(data)", Sum, None, -4, 4, exp(x - c), c + log(a), dy * exp(x - y)) \
  ROW(ReduceMax, "the greatest of data; equal ones share its gradient", Max, All, -1, 1, x, a, x == y ? dy : W(0)) \
  ROW(ReduceMean, "the mean of data", Sum, None, -1, 1, x, a / n, dy / n) \
  ROW(ReduceMin, "the least of data; equal ones share its gradient", Min, All, -1, 1, x, a, x == y ? dy : W(0)) \
  ROW(ReduceProd, "the product of data", Prod, Signed, 0.9, 1.1, x, a, none) \
  ROW(ReduceSum, "the sum of data", Sum, Signed, -1, 1, x, a, dy) \
  ROW(ReduceSumSquare, "the sum of data²", Sum, Signed, -1, 1, x * x, a, 2 * dy * x)
// clang-format on

#define ARBALEST_REDUCTION_FORMULA(Name, doc, combination, integers, low, high, term_, value_, gradient)    \
  struct Name {                                                                                             \
    using Combination = reductions::combination;                                                            \
    static constexpr Integers kIntegers = Integers::integers;                                               \
    static constexpr bool kCentred = elementwise::mentions(#term_, 'c');                                    \
    static constexpr bool kGradient = std::string_view(#gradient) != "none";                                \
    static constexpr bool kMean = std::string_view(#value_) == "a / n";                                     \
    static constexpr bool kPlain = std::string_view(#value_) == "a";                                        \
    /* one number is its own reduction */                                                                   \
    static constexpr bool kKeepsOne = std::string_view(#term_) == "x" && (kMean || kPlain);                 \
    template <typename W>                                                                                   \
    ARBALEST_HOST_DEVICE static W centre(W c) {                                                             \
      return c - c == 0 ? c : W(0); /* no number is left of an infinite one */                              \
    }                                                                                                       \
    template <typename W>                                                                                   \
    ARBALEST_HOST_DEVICE static W term(W x, [[maybe_unused]] W c) {                                         \
      using namespace elementwise;                                                                          \
      return term_;                                                                                         \
    }                                                                                                       \
    template <typename W>                                                                                   \
    ARBALEST_HOST_DEVICE static W value(W a, [[maybe_unused]] W n, [[maybe_unused]] W c) {                  \
      using namespace elementwise;                                                                          \
      return value_;                                                                                        \
    }                                                                                                       \
    struct Formula {                                                                                        \
      static constexpr bool kFirst = elementwise::mentions(#gradient, 'x');                                 \
      static constexpr bool kSecond = elementwise::mentions(#gradient, 'y');                                \
      static constexpr const char *kFirstName = "x", *kSecondName = "y";                                    \
      static constexpr std::string_view kText = "[&](W n) { return " #gradient "; }(alpha)";                \
      template <typename W> /* alpha: n */                                                                  \
      ARBALEST_HOST_DEVICE static W at([[maybe_unused]] const elementwise::Parameters& parameters,          \
                                       [[maybe_unused]] W dy, [[maybe_unused]] W x, [[maybe_unused]] W y) { \
        using namespace elementwise;                                                                        \
        [[maybe_unused]] const W n = static_cast<W>(parameters.alpha), none = 0;                            \
        return gradient;                                                                                    \
      }                                                                                                     \
    };                                                                                                      \
    using Grad = elementwise::Gradient<Formula>;                                                            \
  };

ARBALEST_REDUCTIONS(ARBALEST_REDUCTION_FORMULA)
#undef ARBALEST_REDUCTION_FORMULA

// arbalest.ReduceTies: how many x are equal to the c that is given for all of them.
struct ReduceTies {
  using Combination = Sum;
  static constexpr Integers kIntegers = Integers::None;
  static constexpr bool kCentred = true;
  template <typename W>
  ARBALEST_HOST_DEVICE static W centre(W c) {
    return c;
  }
  template <typename W>
  ARBALEST_HOST_DEVICE static W term(W x, W c) {
    return x == c ? W(1) : W(0);
  }
  template <typename W>
  ARBALEST_HOST_DEVICE static W value(W a, W, W) {
    return a;
  }
};

}  // namespace arbalest::reductions
