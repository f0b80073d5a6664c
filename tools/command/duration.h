// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times on the command line.

#include <optional>
#include <string_view>

namespace arbalest {

// The seconds of "90", "90s", "1m30s", "1.5h", "1d" or "250ms": a number alone is of seconds, parts follow each other
// from the greatest unit to the least. None if the text is no time.
std::optional<double> seconds_of(std::string_view text);

inline constexpr const char* kTimes = "90, 90s, 1m30s, 2h or 1d";  // for messages and help

}  // namespace arbalest
