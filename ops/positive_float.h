// SPDX-License-Identifier: Apache-2.0
#pragma once
// A check of attributes that kernels read as floats.

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "graph/graph.h"

namespace arbalest {

// The attribute, which has to be above 0 and within what a normal float holds: less becomes 0 in kernels.
inline double positive_float(const Node& node, std::string_view name) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  const double value = float_attribute(node, name);
  if (value >= kLeast && std::isfinite(float(value))) return value;
  fail(node, fmt::format("attribute '{}' is {}; expected more than 0, within what a float holds ({:.3g} to {:.3g})",
                         name, value, kLeast, double(std::numeric_limits<float>::max())));
}

}  // namespace arbalest
