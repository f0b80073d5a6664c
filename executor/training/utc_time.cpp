// SPDX-License-Identifier: Apache-2.0
#include "executor/training/utc_time.h"

#include <fmt/chrono.h>

namespace arbalest {

std::string utc_time(std::time_t seconds) {
  std::tm parts = {};
  return gmtime_r(&seconds, &parts) ? fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", parts) : "";
}

}  // namespace arbalest
