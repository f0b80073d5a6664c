// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers in texts, as std::from_chars reads them: no blanks, no plus sign, the same in every locale.

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <system_error>

namespace arbalest {

// The number at the start of the text, which it takes away; none if there is none or it does not fit. `how`: the base
// of a whole number, or the format of a real one.
template <typename Number, typename... How>
std::optional<Number> take_number(std::string_view& text, How... how) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, how...);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(size_t(end - text.data()));
  return number;
}

// The number that the whole text is.
template <typename Number, typename... How>
std::optional<Number> read_number(std::string_view text, How... how) {
  const std::optional<Number> number = take_number<Number>(text, how...);
  return text.empty() ? number : std::nullopt;
}

// The number that the whole text is, if it is neither an infinity nor NaN.
inline std::optional<double> finite_number(std::string_view text) {
  const std::optional<double> number = read_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

}  // namespace arbalest
