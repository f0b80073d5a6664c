// SPDX-License-Identifier: Apache-2.0
#pragma once
// A condition on a validation metric that ends a run: 'accuracy >= 0.94'.

#include <cstdint>
#include <string>
#include <string_view>

namespace arbalest {

struct Target {
  enum class Op : uint8_t { GreaterEqual, Greater, LessEqual, Less };
  std::string metric;
  Op op = Op::GreaterEqual;
  double threshold = 0;

  bool met(double value) const;  // never by NaN
  bool operator==(const Target&) const = default;
};

std::string to_string(const Target& target);  // "accuracy >= 0.94"

// Throws GraphError that says what was found and expected.
Target parse_target(std::string_view text);

// Throws GraphError if no value of the metric, which is `least` to `most`, meets the target. `option`: how the target
// was stated.
void check_in_reach(const Target& target, double least, double most, const std::string& option);

}  // namespace arbalest
