// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which run a checkpoint is of.

#include <string>

#include "executor/session/session.h"
#include "executor/training/checkpoint.h"

namespace arbalest {

// The identity of a run whose first segment is prepared. `metric`: by which its validations are judged.
RunIdentity identity_of(const Prepared& prepared, const SessionOptions& options, const std::string& metric);

// Throws GraphError unless the checkpoint is of the run `here`. `with_others`: which has other learners or devices.
// `graph`: the run's, for the changes that would make it the same.
void check_same_run(const CheckpointFile& file, const RunIdentity& here, const Graph& graph, bool with_others);

}  // namespace arbalest
