// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trials that a sweep's command line asks for, and the sweep in a folder that it goes on with.

#include <optional>
#include <string_view>

#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {

// A sweep refuses options of a run that it sets for each trial, or that make no sense for several runs. Returns what
// takes the place of such an option, as messages say it, and nullptr for any other option.
const char* place_of_trials(std::string_view option);
// Throws GraphError if a sweep refuses the option. The message says what takes its place.
void refuse_of_trials(std::string_view option);

// Returns the trials of the command line's settings. Throws GraphError for settings that no trial can have, or that
// have no effect.
SweepPlan sweep_plan(const SweepOptions& options, const Graph& graph);

// Returns the record of the sweep in the folder, or nothing if there is none. Throws GraphError if that sweep is
// another one, with what differs, or if --resume is missing.
std::optional<SweepRecord> record_before(const SweepOptions& options, const SweepPlan& plan);

}  // namespace arbalest
