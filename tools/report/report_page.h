// SPDX-License-Identifier: Apache-2.0
#pragma once
// A report of runs: one HTML file with everything in it.

#include <string>
#include <vector>

#include "tools/report/run_log.h"

namespace arbalest {

std::string report_page(const std::vector<RunLog>& runs);

}  // namespace arbalest
