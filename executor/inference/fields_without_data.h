// SPDX-License-Identifier: Apache-2.0
#pragma once
// The fields of a model's samples, if its data set is not available.

#include <memory>
#include <vector>

#include "executor/session/session.h"
#include "graph/graph.h"
#include "io/sources/source.h"

namespace arbalest {

// The fields of a sample, inferred from the graph's use of Prefetch's outputs. They are files that host nodes prepare,
// classes, and labels, as many as the file of weights has names for. Empty if an output's type cannot be inferred.
// Throws RunError if the file of weights cannot be read.
std::vector<Field> fields_without_data(const Graph& graph, const FileOptions& files);

// Stands for a data set of such samples; none can be read.
std::shared_ptr<const Source> source_of_fields(std::vector<Field> fields);

}  // namespace arbalest
