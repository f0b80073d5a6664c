// SPDX-License-Identifier: Apache-2.0

// Libraries that are opened when they are needed: their functions are called as any, and what is missing is named.

#include "base/late_library.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "base/in_threads.h"

namespace arbalest::late_library_test {
namespace {

using Cosine = double(double);

}  // namespace

TEST_CASE("a function of a late library is found by the first of several threads that call it") {
  LateLibrary library("m", 6);
  const LateFunction<Cosine> cosine(library, "cos");
  in_threads(8, 4, [&](size_t i) { CHECK(cosine(double(i)) == std::cos(double(i))); });
}

TEST_CASE("a late library that is missing, and a function that it lacks, are named") {
  LateLibrary missing("arbalest_has_no_such_library", 3), library("m", 6);
  const LateFunction<Cosine> unopened(missing, "cos"), unknown(library, "arbalest");
  CHECK_THROWS_WITH_AS(unopened(0), doctest::Contains("libarbalest_has_no_such_library.so.3: "), RunError);
  CHECK_THROWS_WITH_AS(unknown(0), "libm.so.6 has no function arbalest", RunError);
}

}  // namespace arbalest::late_library_test
