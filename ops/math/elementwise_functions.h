// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that formulas of ops/math/elementwise_table.h call. The part between the two marks is text for NVRTC, too.

#include <cmath>

#include "base/host_device.h"
#ifndef __CUDACC__
#include "ops/math/float_functions.h"
#endif

namespace arbalest::elementwise {

using std::abs, std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atanh, std::ceil, std::cos, std::cosh,
    std::erfc, std::floor, std::fmod, std::pow, std::rint, std::sin, std::sinh, std::sqrt, std::tan, std::trunc;
#ifdef __CUDACC__
using std::erf, std::exp, std::expm1, std::log, std::log1p, std::tanh;
#endif

// formulas: begin
template <typename W>
ARBALEST_HOST_DEVICE inline W sigmoid(W x) {
  return 1 / (1 + exp(-x));
}
// log(1 + exp(x)), without overflow.
template <typename W>
ARBALEST_HOST_DEVICE inline W softplus(W x) {
  return (x > 0 ? x : W(0)) + log1p(exp(-abs(x)));
}
template <typename W>
ARBALEST_HOST_DEVICE inline W clamp(W x, W low, W high) {
  return x < low ? low : x > high ? high : x;
}
template <typename W>
ARBALEST_HOST_DEVICE inline W clip(W x, W low, W high) {
  const W raised = x < low ? low : x;
  return raised > high ? high : raised;
}
template <typename W>
ARBALEST_HOST_DEVICE inline W swish_gradient(W x, W alpha) {
  const W s = sigmoid(alpha * x);
  return s + alpha * x * s * (1 - s);
}
// Φ(−|x|), Φ being the normal distribution, in float within 7e-7 of its value where |x| < 3. Φ(−|x|) · exp(x² / 2) is a
// polynomial of 1 / (1 + 0.28 |x|): less than what erfc takes, and the exponential is normal_slope()'s.
template <typename W>
ARBALEST_HOST_DEVICE inline W normal_tail(W x) {
#ifdef __CUDA_ARCH__
  const W t = __fdividef(1.0f, 1.0f + 0.28f * abs(x));
#else
  const W t = 1 / (1 + W(0.28f) * abs(x));
#endif
  W tail = W(0.0247362687f);
  tail = tail * t - W(0.0936567115f);
  tail = tail * t + W(0.0925291154f);
  tail = tail * t - W(0.00653314382f);
  tail = tail * t + W(0.0728141341f);
  tail = tail * t + W(0.0836206355f);
  tail = tail * t + W(0.103086038f);
  tail = tail * t + W(0.11169972f);
  tail = tail * t + W(0.111703859f);
  return tail * t * exp(W(-0.5) * x * x);
}
// Φ(x), and below x times its density.
template <typename W>
ARBALEST_HOST_DEVICE inline W normal_cdf(W x) {
#ifdef __CUDA_ARCH__
  const W tail = normal_tail(x);
  return x > 0 ? 1 - tail : tail;
#else
  return W(0.5) * erfc(x * W(-0.70710678118654752));  // exact in the tail, where 1 + erf cancels
#endif
}
template <typename W>
ARBALEST_HOST_DEVICE inline W normal_slope(W x) {
  return x * W(0.39894228040143268) * exp(W(-0.5) * x * x);
}
// The approximation of Φ(x) by tanh that Gelu's attribute asks for, and x times its derivative.
template <typename W>
ARBALEST_HOST_DEVICE inline W tanh_cdf(W x) {
  return sigmoid(2 * W(0.79788456080286536) * (x + W(0.044715) * x * x * x));  // (1 + tanh(u)) / 2 = sigmoid(2u)
}
template <typename W>
ARBALEST_HOST_DEVICE inline W tanh_slope(W x) {
  const W t = tanh_cdf(x);
  return 2 * x * t * (1 - t) * W(0.79788456080286536) * (1 + 3 * W(0.044715) * x * x);
}
template <typename W>
ARBALEST_HOST_DEVICE inline W mish_gradient(W x) {
  const W t = tanh(softplus(x));
  return t + x * (1 - t * t) * sigmoid(x);
}
// The remainder of a / b with the sign of b.
template <typename W>
ARBALEST_HOST_DEVICE inline W floored_remainder(W a, W b) {
  const W rest = fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
// formulas: end

#ifndef __CUDACC__
inline float normal_cdf(float x) {
  const float tail = normal_tail(x);
  return x > 0 ? 1 - tail : tail;
}

inline float erf(float x) {
  const float z = x * x;
  const float p = polynomial(z, -9.68013995e-06f, 0.000112705457f, -0.000848471162f, 0.00522107489f, -0.0268654458f,
                             0.112837827f, -0.376126385f, 1.12837917f);
  return z < 1 ? x * p : std::copysign(1 - 2 * normal_tail(1.41421356f * x), x);
}
inline double erf(double x) {
  return std::erf(x);
}
#endif

}  // namespace arbalest::elementwise
