// SPDX-License-Identifier: Apache-2.0

// Functions of floats against those of double: over all of their range, at the ends of it, and in loops of any length.

#include <doctest/doctest.h>

#include <bit>
#include <vector>

#include "ops/math/elementwise_functions.h"

using namespace arbalest;

namespace {

struct Function {
  const char* name;
  float (*of_float)(float);
  double (*of_double)(double);
  void (*loop)(const std::vector<float>& in, std::vector<float>& out);
  double units;  // in the last place, at most
  float from = -std::numeric_limits<float>::infinity();
};

#define ARBALEST_FUNCTION(name, ...)                                       \
  Function {                                                               \
#name, [](float x) { return elementwise::name(x); },                     \
        [](double x) { return double(elementwise::name(x)); },               \
        [](const std::vector<float>& in, std::vector<float>& out) {          \
          for (size_t i = 0; i < in.size(); ++i) out[i] = elementwise::name(in[i]); \
        }, __VA_ARGS__ \
  }

const Function kFunctions[] = {ARBALEST_FUNCTION(exp, 1.5),
                               ARBALEST_FUNCTION(expm1, 2),
                               ARBALEST_FUNCTION(log, 1),
                               ARBALEST_FUNCTION(log1p, 2),
                               ARBALEST_FUNCTION(tanh, 3),
                               ARBALEST_FUNCTION(erf, 3),
                               ARBALEST_FUNCTION(normal_cdf, 12, -3.0f),
                               ARBALEST_FUNCTION(normal_cdf, 70, -12.0f)};

double units_apart(float found, double expected) {
  const float nearest = std::abs(float(expected));
  const double unit = double(std::nextafter(nearest, std::numeric_limits<float>::infinity())) - double(nearest);
  return std::abs(double(found) - expected) / unit;
}

}  // namespace

TEST_CASE("functions of floats are within units in the last place of those of double") {
  constexpr uint32_t kStep = 997;  // between bit patterns
  for (const Function& f : kFunctions) {
    CAPTURE(f.name);
    double worst = 0;
    float where = 0;
    int wrong = 0;
    for (uint64_t bits = 0; bits < uint64_t(1) << 32; bits += kStep) {
      const float x = std::bit_cast<float>(uint32_t(bits));
      if (!(x >= f.from)) continue;
      const double expected = f.of_double(double(x));
      const float found = f.of_float(x), rounded = float(expected);
      if (std::isnan(found) != std::isnan(rounded)) {
        ++wrong;
      } else if (!std::isfinite(rounded)) {
        wrong += !std::isnan(rounded) && found != rounded;
      } else if (const double units = units_apart(found, expected); !(units <= worst)) {
        worst = units, where = x;
      }
    }
    CAPTURE(where);
    CHECK(wrong == 0);
    CHECK(worst <= f.units);
  }
}

TEST_CASE("functions of floats keep what is not finite and the sign of 0") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Function& f : kFunctions) {
    CAPTURE(f.name);
    CHECK(std::isnan(f.of_float(nan)));
  }
  CHECK(elementwise::exp(infinity) == infinity);
  CHECK(elementwise::exp(-infinity) == 0);
  CHECK(elementwise::log(0.0f) == -infinity);
  CHECK(elementwise::log(infinity) == infinity);
  CHECK(std::isnan(elementwise::log(-1.0f)));
  CHECK(elementwise::log1p(-1.0f) == -infinity);
  CHECK(elementwise::tanh(-infinity) == -1);
  CHECK(elementwise::erf(infinity) == 1);
  CHECK(std::signbit(elementwise::expm1(-0.0f)));
  CHECK(std::signbit(elementwise::tanh(-0.0f)));
  CHECK(std::signbit(elementwise::erf(-0.0f)));
}

TEST_CASE("functions of floats have the same bits in a loop as alone, wherever the loop ends") {
  for (const Function& f : kFunctions) {
    CAPTURE(f.name);
    for (const size_t length : {1, 3, 8, 13, 64, 1000}) {
      std::vector<float> in(length), out(length);
      for (size_t i = 0; i < length; ++i) in[i] = float(i) * 0.0137f - 2.9f;
      f.loop(in, out);
      int other = 0;
      for (size_t i = 0; i < length; ++i) {
        const float alone = f.of_float(in[i]);
        other += !(std::isnan(alone) && std::isnan(out[i])) &&
                 std::bit_cast<uint32_t>(alone) != std::bit_cast<uint32_t>(out[i]);
      }
      CHECK(other == 0);
    }
  }
}
