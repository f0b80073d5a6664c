// SPDX-License-Identifier: Apache-2.0
#pragma once
// Judging results element by element.

#include <span>
#include <string>

#include "graph/types.h"

namespace arbalest::test {

// How far an element may be from what is expected: |found − expected| ≤ absolute + relative · |expected|.
struct Tolerance {
  double absolute = 0, relative = 0;
};

// "" if every element is near enough, else the element that is farthest beyond its tolerance: its index, what was
// found and what was expected. NaN equals NaN only, and an infinity only itself. `shape` is in the elements' order.
std::string worst_element(const Shape& shape, std::span<const double> found, std::span<const double> expected,
                          Tolerance tolerance);

// The root of the mean square, 0 for no elements; NaN and infinities are left out.
double root_mean_square(std::span<const double> values);

}  // namespace arbalest::test
