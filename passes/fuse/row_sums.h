// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over rows, which regions may end in.

#include <optional>

#include "ops/regions/region.h"

namespace arbalest {

// Whether regions compute with elements of the type as numbers.
bool is_number(DataType type);

// The sum of a region that the node is, but for what it is of. None: it is no sum over all axes but the innermost in
// memory, nor one over those of each sample.
std::optional<RegionSum> row_sum(const Graph& graph, const Node& node);

}  // namespace arbalest
