// SPDX-License-Identifier: Apache-2.0
#pragma once
// Results of elementwise operators for integers, on the CPU: exporters compute shapes and indices with them. Sums,
// differences and products wrap around.

#include <cstdint>
#include <type_traits>

#include "ops/math/convert.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/math/elementwise_table.h"

namespace arbalest::elementwise {

// a / b rounded towards 0; 0 if b is 0. The most negative number divided by −1 wraps around as its negation does.
template <typename W>
W quotient(W a, W b) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<W>) {
    if (b == -1) return W(std::make_unsigned_t<W>(0) - std::make_unsigned_t<W>(a));
  }
  return W(a / b);
}

// Remainder with the sign of a, or if `floored` with that of b; 0 if b is 0.
template <typename W>
W remainder(W a, W b, bool floored) {
  if (b == 0) return 0;
  if constexpr (std::is_signed_v<W>) {
    if (b == -1) return 0;  // the quotient might not fit
  }
  const W rest = W(a % b);
  return floored && rest != 0 && (rest < 0) != (b < 0) ? W(rest + b) : rest;
}

// a to the power of b, by squaring. A negative power is 0 unless a is 1 or −1.
template <typename W>
W power(W a, W b) {
  if constexpr (std::is_signed_v<W>) {
    if (b < 0) return a == 1 || (a == -1 && b % 2 == 0) ? W(1) : a == -1 ? W(-1) : W(0);
  }
  uint64_t result = 1, square = uint64_t(a);
  for (uint64_t rest = uint64_t(b); rest != 0; rest >>= 1, square *= square) {
    if (rest & 1) result *= square;
  }
  return W(result);
}

// ROW(name, value): a formula in x, or in a and b, and in the attributes' values alpha and beta. U is W without a sign.
// clang-format off
#define ARBALEST_INTEGER_UNARY(ROW) \
  ROW(Abs, x < 0 ? W(U(0) - U(x)) : x) \
  ROW(Clip, clip(x, convert_number<W>(alpha), convert_number<W>(beta))) \
  ROW(Neg, W(U(0) - U(x))) \
  ROW(Sign, W(x < 0 ? -1 : x > 0 ? 1 : 0))
#define ARBALEST_INTEGER_BINARY(ROW) \
  ROW(Add, W(U(a) + U(b))) \
  ROW(Div, quotient(a, b)) \
  ROW(Max, a > b ? a : b) \
  ROW(Min, a < b ? a : b) \
  ROW(Mod, remainder(a, b, alpha == 0)) \
  ROW(Mul, W(U(a) * U(b))) \
  ROW(Pow, power(a, b)) \
  ROW(Sub, W(U(a) - U(b)))
// clang-format on

// The operator of the functor for integers; `kAny` says whether there is one.
template <typename Functor>
struct OfIntegers {
  static constexpr bool kAny = false;
};

#define ARBALEST_FUNCTOR_OF_INTEGERS(Name, value, ...)                                \
  template <>                                                                         \
  struct OfIntegers<Name> {                                                           \
    static constexpr bool kAny = true;                                                \
    Parameters parameters;                                                            \
    template <typename W>                                                             \
    W operator()(__VA_ARGS__) const {                                                 \
      using U [[maybe_unused]] = std::make_unsigned_t<W>;                             \
      [[maybe_unused]] const double alpha = parameters.alpha, beta = parameters.beta; \
      return value;                                                                   \
    }                                                                                 \
  };
#define ARBALEST_UNARY(Name, value) ARBALEST_FUNCTOR_OF_INTEGERS(Name, value, W x)
#define ARBALEST_BINARY(Name, value) ARBALEST_FUNCTOR_OF_INTEGERS(Name, value, W a, W b)
ARBALEST_INTEGER_UNARY(ARBALEST_UNARY)
ARBALEST_INTEGER_BINARY(ARBALEST_BINARY)
#undef ARBALEST_UNARY
#undef ARBALEST_BINARY
#undef ARBALEST_FUNCTOR_OF_INTEGERS

// The loops of Functor, and those of OfIntegers<Functor>.
template <typename Functor, size_t inputs>
TypedRows number_rows() {
  constexpr bool kBroadcasts = inputs > 1;
  TypedRows rows = floating_rows<Functor, inputs, kBroadcasts>();
  if constexpr (OfIntegers<Functor>::kAny) {
    rows.uint8s = functor_row<OfIntegers<Functor>, uint8_t, inputs, kBroadcasts>;
    rows.int32s = functor_row<OfIntegers<Functor>, int32_t, inputs, kBroadcasts>;
    rows.int64s = functor_row<OfIntegers<Functor>, int64_t, inputs, kBroadcasts>;
  }
  return rows;
}

}  // namespace arbalest::elementwise
