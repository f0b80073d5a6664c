// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trials that a sweep's command line asks for, and the sweep in a folder that it goes on with.

#include <optional>
#include <string_view>

#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {

// An option of a run that a sweep sets for each trial, or that makes no sense for several runs: what takes its place.
// nullptr: it is none.
const char* place_of_trials(std::string_view option);
// Throws GraphError that says so, if it is one.
void refuse_of_trials(std::string_view option);

// Throws GraphError for settings that no trial can have, or that have no effect.
SweepPlan sweep_plan(const SweepOptions& options, const Graph& graph);

// The record of the sweep in the folder, which has to be the same as this one; nothing if there is none. Throws
// GraphError that says what differs, or that --resume is missing.
std::optional<SweepRecord> record_before(const SweepOptions& options, const SweepPlan& plan);

}  // namespace arbalest
