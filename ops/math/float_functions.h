// SPDX-License-Identifier: Apache-2.0
#pragma once
// exp, expm1, log, log1p and tanh of floats on CPUs, without a branch or a call: a loop over them becomes vector
// instructions. Each is within a few units in the last place, and has the same bits in a vector as alone, which vector
// libraries do not promise: how a loop is shared out between threads must not show. Polynomials are fitted to the least
// relative error. Infinities, NaN and subnormal numbers are as in <cmath>.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace arbalest::elementwise {

// A polynomial of x, the coefficient of the highest power first (Horner's rule).
template <typename... Rest>
constexpr float polynomial(float x, float sum, Rest... rest) {
  ((sum = sum * x + rest), ...);
  return sum;
}

// exp(x) = 2^n · (1 + part), 2^n = scale1 · scale2: 2^n alone may be no float where exp(x) is one.
struct ExpParts {
  float part, scale1, scale2;
};

inline ExpParts exp_parts(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kWhole = 12582912.0f;                                // 1.5 · 2^23: a sum with it is a whole number
  const float within = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;  // exp is 0 or infinity beyond
  const float sum = within * kLog2e + kWhole, n = sum - kWhole;
  const float r = (within - n * kLn2High) - n * kLn2Low;
  const float q = polynomial(r, 0.00139517192f, 0.00836959822f, 0.0416661873f, 0.166665129f, 0.5f);
  const int32_t power = std::bit_cast<int32_t>(sum) - std::bit_cast<int32_t>(kWhole), half = power >> 1;
  const auto power_of_two = [](int32_t k) { return std::bit_cast<float>((uint32_t(k) + 127u) << 23); };
  return {r + r * r * q, power_of_two(half), power_of_two(power - half)};
}

inline float exp(float x) {
  const ExpParts e = exp_parts(x);
  return (1.0f + e.part) * e.scale1 * e.scale2;
}

inline float expm1(float x) {
  const ExpParts e = exp_parts(x);
  const float scale = e.scale1 * e.scale2, lower = scale * e.part + (scale - 1.0f);
  return x > 88.0f ? exp(x) : x == 0.0f ? x : lower;
}

inline float log(float x) {
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f,
                  kInfinity = std::numeric_limits<float>::infinity();
  constexpr uint32_t kRootOfHalf = 0x3f3504f3u;
  const bool small = x < std::numeric_limits<float>::min();
  const float raised = small ? x * 8388608.0f : x;  // by 2^23
  const auto bits = std::bit_cast<uint32_t>(raised);
  const int32_t n = int32_t(bits - kRootOfHalf) >> 23;
  const float f = std::bit_cast<float>(bits - (uint32_t(n) << 23)) - 1.0f;
  const float power = float(n) - (small ? 23.0f : 0.0f);
  const float p = polynomial(f, 0.069154245f, -0.117898352f, 0.118729655f, -0.123843431f, 0.142186589f, -0.166692512f,
                             0.200022266f, -0.249999866f, 0.333333104f);
  const float square = f * f, rest = f * square * p + power * kLn2Low - 0.5f * square;
  const float value = (rest + f) + power * kLn2High;
  const float beyond = x == 0.0f ? -kInfinity : x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : x;
  return x > 0.0f && x < kInfinity ? value : beyond;
}

inline float log1p(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float sum = 1.0f + x, lost = x - (sum - 1.0f), value = log(sum) + lost / sum;
  return x > -1.0f && x < kInfinity ? (x == 0.0f ? x : value) : log(sum);
}

inline float tanh(float x) {
  const float e = expm1(-2.0f * std::fabs(x));
  return std::copysign(e / (2.0f + e), x);
}

inline double exp(double x) {
  return std::exp(x);
}
inline double expm1(double x) {
  return std::expm1(x);
}
inline double log(double x) {
  return std::log(x);
}
inline double log1p(double x) {
  return std::log1p(x);
}
inline double tanh(double x) {
  return std::tanh(x);
}

}  // namespace arbalest::elementwise
