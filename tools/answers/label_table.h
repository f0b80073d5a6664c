// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table that `arbalest evaluate` prints for several labels a sample.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "executor/inference/label_counts.h"

namespace arbalest {

// A name for each label; `threshold`: the probability above which a label is predicted.
std::string label_table(const LabelCounts& counts, const std::vector<std::string>& names, double threshold);
nlohmann::ordered_json label_rates(const LabelCounts& counts, const std::vector<std::string>& names, double threshold);

}  // namespace arbalest
