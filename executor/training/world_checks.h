// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks before a run of several processes begins.

#include "executor/session/session.h"
#include "executor/training/run_identity.h"
#include "executor/world/ranks.h"

namespace arbalest {

// Throws GraphError if the learners train a model each. Throws on every rank, naming the rank, its host and both
// values, unless build, graph, plan, data and options of all ranks are the same. `identity`: of this rank's run.
void check_world(Ranks& ranks, const Prepared& prepared, const SessionOptions& options, const RunIdentity& identity);

}  // namespace arbalest
