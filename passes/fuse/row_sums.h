// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sums over rows, which regions may end in.

#include <optional>

#include "ops/regions/region.h"

namespace arbalest {

class Rewriter;

// A sum of fewer bytes is made by a kernel of its own, which runs aside: a region would hold up all that follows.
constexpr int64_t kLeastSummedBytes = 128 << 10;

// Whether regions compute with elements of the type as numbers.
bool is_number(DataType type);

// The sum of a region that the node is, but for what it is of. None: it is no sum over all axes but the innermost in
// memory, nor one over those of each sample.
std::optional<RegionSum> row_sum(const Graph& graph, const Node& node);

// Whether the node is one that a region may make of the value: an elementwise operator of its shape, or such a sum. If
// only such nodes read a value, nothing has to store it. kNone, which stands for an output of the graph, is none.
bool region_reads(const Graph& graph, const Rewriter& rewriter, NodeId reader, ValueId value);

}  // namespace arbalest
