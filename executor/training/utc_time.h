// SPDX-License-Identifier: Apache-2.0
#pragma once
// Moments as logs and traces state them.

#include <ctime>
#include <string>

namespace arbalest {

// "2025-03-01T12:30:00Z"; "" for a clock that no calendar reaches.
std::string utc_time(std::time_t seconds);

}  // namespace arbalest
