// SPDX-License-Identifier: Apache-2.0
#include "ops/math/divisor.h"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

using namespace arbalest;

namespace divisor_test {

TEST_CASE("a Divisor divides every number below 2^31 exactly") {
  constexpr int64_t kLast = std::numeric_limits<int32_t>::max();
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d < 3000; ++d) divisors.push_back(d);
  for (int bit = 11; bit < 31; ++bit) {
    for (const int64_t d : {-1, 0, 1}) divisors.push_back((int64_t{1} << bit) + d);
  }
  for (const int64_t d : {kLast, kLast - 1, kLast / 2, kLast / 2 + 1, kLast / 3, int64_t{715827883}})
    divisors.push_back(d);
  int64_t wrong = 0;
  for (const int64_t d : divisors) {
    const Divisor divisor(d);
    // Around multiples quotients change.
    for (int64_t i = 0; i < 400; ++i) {
      const int64_t multiple = (kLast / d) * i / 399 * d;
      for (const int64_t n : {multiple - 1, multiple, multiple + d - 1}) {
        if (n >= 0 && n <= kLast && divisor.quotient(int(n)) != n / d) ++wrong;
      }
    }
    if (divisor.quotient(int(kLast)) != kLast / d) ++wrong;
  }
  CHECK(wrong == 0);
}

}  // namespace divisor_test
