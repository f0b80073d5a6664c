#pragma once
// What a run was asked for, told by its command line and its graph.

#include <ctime>
#include <string>

#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/watch/run_settings.h"

namespace arbalest {

// "2025-03-01T12:30:00Z"; "" for a clock that no calendar reaches.
std::string utc_time(std::time_t seconds);

// The graph is the one that is trained, --set included.
RunSettings run_settings(const RunOptions& options, const Graph& graph);

}  // namespace arbalest
