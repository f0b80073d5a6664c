// SPDX-License-Identifier: Apache-2.0
#include "tools/command/duration.h"

#include <cmath>
#include <limits>

#include "base/number.h"

namespace arbalest {
namespace {

struct Unit {
  std::string_view name;
  double seconds;
};
constexpr Unit kUnits[] = {{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}, {"ms", 1e-3}};

const Unit* find_unit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

}  // namespace

std::optional<double> seconds_of(std::string_view text) {
  double total = 0, before = std::numeric_limits<double>::infinity();
  bool alone = true;
  do {
    const auto number = take_number<double>(text, std::chars_format::fixed);
    if (!number || !std::isfinite(*number) || std::signbit(*number)) return std::nullopt;
    if (text.empty()) return alone ? number : std::nullopt;
    const std::string_view name = text.substr(0, text.find_first_of("0123456789."));
    const Unit* unit = find_unit(name);
    if (!unit || unit->seconds >= before) return std::nullopt;
    total += *number * unit->seconds;
    before = unit->seconds;
    alone = false;
    text.remove_prefix(name.size());
  } while (!text.empty());
  return total;
}

}  // namespace arbalest
