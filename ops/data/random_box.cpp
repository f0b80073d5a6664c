// SPDX-License-Identifier: Apache-2.0
#include "ops/data/random_box.h"

#include <fmt/format.h>

#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr double kMostRatio = 1000;  // of width to height

Range range_within(const Node& node, std::string_view name, double least, double most) {
  const std::vector<double> ends = floats_attribute(node, name);
  if (ends.size() == 2 && ends[0] >= least && ends[0] <= ends[1] && ends[1] <= most) return {ends[0], ends[1]};
  fail(node, fmt::format("attribute '{}' is {}; expected [least, most] within {} and {}", name,
                         to_string(Attribute(ends)), least, most));
}

}  // namespace

Range area_range(const Node& node, std::string_view name) {
  return range_within(node, name, 1e-6, 1);
}

Range log_ratio_range(const Node& node, std::string_view name) {
  const Range ratio = range_within(node, name, 1 / kMostRatio, kMostRatio);
  return {std::log(ratio.least), std::log(ratio.most)};
}

}  // namespace arbalest
