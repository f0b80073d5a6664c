#pragma once
// What a run was asked for, told by its command line and its graph.

#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/watch/run_settings.h"

namespace arbalest {

// The graph is the one that is trained, --set included.
RunSettings run_settings(const RunOptions& options, const Graph& graph);

}  // namespace arbalest
