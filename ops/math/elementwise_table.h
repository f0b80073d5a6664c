// SPDX-License-Identifier: Apache-2.0
#pragma once
// The elementwise operators, a line each: the line gives the operator, its gradient, their kernels and their samples.
// Formulas are compiled for the CPU (W: float or double). For GPUs they are text, which NVRTC compiles while a plan is
// made (ops/regions; W: float; bfloat16 is storage only).

#include <cmath>
#include <limits>
#include <string_view>

#include "ops/math/elementwise_functions.h"

namespace arbalest::elementwise {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ROW(name, documentation, attributes, low, high, value, gradient)
//   name:       ONNX's; the gradient's operator is arbalest.<name>Grad
//   attributes: at most two (ops/math/elementwise.h), whose values are `alpha` and `beta` in the formulas
//   low, high:  range that inputs of the samples are drawn from
//   value:      formula in x; a ternary takes a NaN to its last branch
//   gradient:   formula in dy, x and y (the value). Only those that it mentions are kept for backward.
// clang-format off
#define ARBALEST_UNARY_OPERATORS(ROW) \
  ROW(Abs, "|X|", none(), -1, 1, abs(x), x < 0 ? -dy : x > 0 ? dy : W(0)) \
  ROW(Acos, "the angle from 0 to π whose cosine is X", none(), -0.9, 0.9, acos(x), -dy / sqrt((1 - x) * (1 + x))) \
  ROW(Acosh, "the number of at least 0 whose hyperbolic cosine is X", none(), 1.2, 4, acosh(x), dy / sqrt((x - 1) * (x + 1))) \
  ROW(Asin, "the angle from −π / 2 to π / 2 whose sine is X", none(), -0.9, 0.9, asin(x), dy / sqrt((1 - x) * (1 + x))) \
  ROW(Asinh, "the number whose hyperbolic sine is X", none(), -3, 3, asinh(x), dy / sqrt(x * x + 1)) \
  ROW(Atan, "the angle whose tangent is X", none(), -3, 3, atan(x), dy / (1 + x * x)) \
  ROW(Atanh, "the number whose hyperbolic tangent is X", none(), -0.9, 0.9, atanh(x), dy / ((1 - x) * (1 + x))) \
  ROW(Ceil, "the least whole number that is not less than X", none(), -4, 4, ceil(x), 0 * dy) \
  ROW(Celu, "X, below 0 alpha · (exp(X / alpha) − 1)", one("alpha", 1.0), -3, 3, x < 0 ? alpha * expm1(x / alpha) : x, x < 0 ? dy * exp(x / alpha) : dy) \
  ROW(Clip, "X, at least min and at most max; where min is the greater max", two("min", -kInfinity, "max", kInfinity), -1, 1, clip(x, alpha, beta), x >= alpha && x <= beta ? dy : W(0)) \
  ROW(Cos, "cos(X)", none(), -4, 4, cos(x), -dy * sin(x)) \
  ROW(Cosh, "the hyperbolic cosine of X", none(), -3, 3, cosh(x), dy * sinh(x)) \
  ROW(Elu, "X, below 0 alpha · (exp(X) − 1)", one("alpha", 1.0), -3, 3, x < 0 ? alpha * expm1(x) : x, x < 0 ? dy * alpha * exp(x) : dy) \
  ROW(Erf, "the error function of X", none(), -2, 2, erf(x), dy * W(1.1283791670955126) * exp(-x * x)) \
  ROW(Exp, "exp(X)", none(), -3, 3, exp(x), dy * y) \
  ROW(Floor, "the greatest whole number that is not more than X", none(), -4, 4, floor(x), 0 * dy) \
  ROW(Gelu, "X · Φ(X), Φ the normal distribution", choice("approximate", "none", "tanh"), -3, 3, x * (alpha > 0 ? tanh_cdf(x) : normal_cdf(x)), dy * (alpha > 0 ? tanh_cdf(x) + tanh_slope(x) : normal_cdf(x) + normal_slope(x))) \
  ROW(HardSigmoid, "alpha · X + beta, between 0 and 1", two("alpha", 0.2, "beta", 0.5), -4, 4, clamp(alpha * x + beta, W(0), W(1)), alpha * x + beta > 0 && alpha * x + beta < 1 ? dy * alpha : W(0)) \
  ROW(HardSwish, "X · (X / 6 + 1 / 2 between 0 and 1)", none(), -4, 4, x * clamp(x / 6 + W(0.5), W(0), W(1)), x <= -3 ? W(0) : x >= 3 ? dy : dy * (x / 3 + W(0.5))) \
  ROW(LeakyRelu, "X, below 0 alpha · X", one("alpha", 0.01), -1, 1, x < 0 ? alpha * x : x, x < 0 ? dy * alpha : dy) \
  ROW(Log, "the natural logarithm of X", none(), 0.1, 4, log(x), dy / x) \
  ROW(Mish, "X · tanh(log(1 + exp(X)))", none(), -3, 3, x * tanh(softplus(x)), dy * mish_gradient(x)) \
  ROW(Neg, "−X", none(), -1, 1, -x, -dy) \
  ROW(Reciprocal, "1 / X", none(), 0.5, 2, 1 / x, -dy * y * y) \
  ROW(Relu, "max(X, 0)", none(), -1, 1, x < 0 ? W(0) : x, y > 0 ? dy : W(0)) \
  ROW(Round, "the whole number next to X, of two the even one", none(), -4, 4, rint(x), 0 * dy) \
  ROW(Selu, "gamma · X, below 0 gamma · alpha · (exp(X) − 1)", two("alpha", 1.67326319217681884765625, "gamma", 1.05070102214813232421875), -3, 3, x < 0 ? beta * alpha * expm1(x) : beta * x, x < 0 ? dy * beta * alpha * exp(x) : dy * beta) \
  ROW(Shrink, "X + bias below −lambd, X − bias above lambd, else 0", two("bias", 0.0, "lambd", 0.5), -2, 2, x < -beta ? x + alpha : x > beta ? x - alpha : W(0), x < -beta || x > beta ? dy : W(0)) \
  ROW(Sigmoid, "1 / (1 + exp(−X))", none(), -4, 4, sigmoid(x), dy * y * (1 - y)) \
  ROW(Sign, "−1, 0 or 1", none(), -1, 1, x < 0 ? W(-1) : x > 0 ? W(1) : x, 0 * dy) \
  ROW(Sin, "sin(X)", none(), -4, 4, sin(x), dy * cos(x)) \
  ROW(Sinh, "the hyperbolic sine of X", none(), -3, 3, sinh(x), dy * cosh(x)) \
  ROW(Softplus, "log(1 + exp(X))", none(), -4, 4, softplus(x), dy * sigmoid(x)) \
  ROW(Softsign, "X / (1 + |X|)", none(), -3, 3, x / (1 + abs(x)), dy / ((1 + abs(x)) * (1 + abs(x)))) \
  ROW(Sqrt, "the square root of X", none(), 0.1, 4, sqrt(x), dy / (2 * y)) \
  ROW(Swish, "X / (1 + exp(−alpha · X))", one("alpha", 1.0), -4, 4, x * sigmoid(alpha * x), dy * swish_gradient(x, alpha)) \
  ROW(Tan, "the tangent of X", none(), -1.2, 1.2, tan(x), dy * (1 + y * y)) \
  ROW(Tanh, "tanh(X)", none(), -2, 2, tanh(x), dy * (1 - y * y)) \
  ROW(ThresholdedRelu, "X where X > alpha, else 0", one("alpha", 1.0), -3, 3, x > alpha ? x : W(0), x > alpha ? dy : W(0))

// ROW(name, documentation, attributes, low, high, value, gradient of A, gradient of B)
//   name:       ONNX's; the gradients' operators are arbalest.<name>GradA and …GradB, none if a gradient is dy itself
//   attributes: as above
//   low, high:  inputs of the samples are drawn from here
//   value:      formula in a and b, which are broadcast
//   gradients:  formulas in dy, a and b. Only those that they mention are kept for backward; sums over broadcast axes
//               follow.
#define ARBALEST_BINARY_OPERATORS(ROW) \
  ROW(Add, "A + B, broadcast", none(), -1, 1, a + b, dy, dy) \
  ROW(Div, "A / B, broadcast; of integers without the remainder, and 0 where B is 0", none(), 0.5, 2, a / b, dy / b, -dy * a / (b * b)) \
  ROW(Max, "the greatest of all inputs, broadcast; of equal ones the first gets the gradient", none(), -1, 1, a > b || a != a ? a : b, a >= b ? dy : W(0), a >= b ? W(0) : dy) \
  ROW(Min, "the least of all inputs, broadcast; of equal ones the first gets the gradient", none(), -1, 1, a < b || a != a ? a : b, a <= b ? dy : W(0), a <= b ? W(0) : dy) \
  ROW(Mod, "the remainder of A / B, broadcast: with the sign of B, or with fmod = 1 of A; of integers 0 where B is 0", flag("fmod"), 0.5, 2, alpha > 0 ? fmod(a, b) : floored_remainder(a, b), dy, -dy * (alpha > 0 ? trunc(a / b) : floor(a / b))) \
  ROW(Mul, "A · B, broadcast", none(), -1, 1, a * b, dy * b, dy * a) \
  ROW(PRelu, "X, below 0 slope · X; slope is broadcast to X", none(), -1, 1, a < 0 ? b * a : a, a < 0 ? dy * b : dy, a < 0 ? dy * a : W(0)) \
  ROW(Pow, "A to the power of B, broadcast", none(), 0.5, 2, pow(a, b), b == 0 ? W(0) : dy * b * pow(a, b - 1), a > 0 ? dy * pow(a, b) * log(a) : W(0)) \
  ROW(Sub, "A - B, broadcast", none(), -1, 1, a - b, dy, -dy) \
  ROW(Sum, "the sum of all inputs, broadcast", none(), -1, 1, a + b, dy, dy)
// clang-format on

// The values of a line's attributes.
struct Parameters {
  double alpha = 0, beta = 0;
};

// Whether a formula names the variable, a single letter.
consteval bool mentions(std::string_view formula, char variable) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  for (size_t i = 0; i < formula.size(); ++i) {
    const bool begins = i == 0 || !letter(formula[i - 1]);
    if (formula[i] == variable && begins && (i + 1 == formula.size() || !letter(formula[i + 1]))) return true;
  }
  return false;
}

// A gradient as a functor of dy and those of two further operands that its formula mentions. Formula::at(row, dy, p,
// q).
template <typename Formula>
struct Gradient {
  using Of = Formula;
  static constexpr bool kFirst = Formula::kFirst, kSecond = Formula::kSecond;
  Parameters parameters;

  template <typename W, typename... Rest>
  W operator()(W dy, Rest... rest) const {
    static_assert(sizeof...(Rest) == size_t(kFirst) + size_t(kSecond));
    if constexpr (kFirst && kSecond) {
      return Formula::at(parameters, dy, rest...);
    } else if constexpr (kFirst) {
      return Formula::at(parameters, dy, rest..., W(0));
    } else {
      return Formula::at(parameters, dy, W(0), rest...);
    }
  }
  template <typename W>
  W operator()(W dy) const {
    static_assert(!kFirst && !kSecond);
    return Formula::at(parameters, dy, W(0), W(0));
  }
};

#define ARBALEST_PARAMETERS                                          \
  [[maybe_unused]] const W alpha = static_cast<W>(parameters.alpha); \
  [[maybe_unused]] const W beta = static_cast<W>(parameters.beta);

// A gradient of dy and two operands.
#define ARBALEST_FORMULA(Name, first, second, gradient)                                                         \
  struct Name {                                                                                                 \
    static constexpr bool kFirst = mentions(#gradient, #first[0]), kSecond = mentions(#gradient, #second[0]);   \
    static constexpr std::string_view kText = #gradient, kFirstName = #first, kSecondName = #second;            \
    static constexpr bool kPassedOn = kText == "dy";                                                            \
    template <typename W>                                                                                       \
    static W at([[maybe_unused]] const Parameters& parameters, [[maybe_unused]] W dy, [[maybe_unused]] W first, \
                [[maybe_unused]] W second) {                                                                    \
      ARBALEST_PARAMETERS                                                                                       \
      return gradient;                                                                                          \
    }                                                                                                           \
  };

#define ARBALEST_UNARY_FUNCTOR(Name, doc, attributes, low, high, value, gradient) \
  struct Name {                                                                   \
    static constexpr std::string_view kText = #value;                             \
    Parameters parameters;                                                        \
    template <typename W>                                                         \
    W operator()(W x) const {                                                     \
      ARBALEST_PARAMETERS                                                         \
      return value;                                                               \
    }                                                                             \
    ARBALEST_FORMULA(Formula, x, y, gradient)                                     \
    using Grad = Gradient<Formula>;                                               \
  };

#define ARBALEST_BINARY_FUNCTOR(Name, doc, attributes, low, high, value, gradient_a, gradient_b) \
  struct Name {                                                                                  \
    static constexpr std::string_view kText = #value;                                            \
    Parameters parameters;                                                                       \
    template <typename W>                                                                        \
    W operator()(W a, W b) const {                                                               \
      ARBALEST_PARAMETERS                                                                        \
      return value;                                                                              \
    }                                                                                            \
    ARBALEST_FORMULA(FormulaA, a, b, gradient_a)                                                 \
    ARBALEST_FORMULA(FormulaB, a, b, gradient_b)                                                 \
    using GradA = Gradient<FormulaA>;                                                            \
    using GradB = Gradient<FormulaB>;                                                            \
  };

ARBALEST_UNARY_OPERATORS(ARBALEST_UNARY_FUNCTOR)
ARBALEST_BINARY_OPERATORS(ARBALEST_BINARY_FUNCTOR)

#undef ARBALEST_UNARY_FUNCTOR
#undef ARBALEST_BINARY_FUNCTOR
#undef ARBALEST_FORMULA
#undef ARBALEST_PARAMETERS

}  // namespace arbalest::elementwise
