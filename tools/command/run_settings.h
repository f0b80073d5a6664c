// SPDX-License-Identifier: Apache-2.0
#pragma once
// The settings of a run, from its command line and its graph.

#include "graph/graph.h"
#include "tools/command/options.h"
#include "tools/watch/run_settings.h"

namespace arbalest {

// The graph is the one that is trained, --set included.
RunSettings run_settings(const RunOptions& options, const Graph& graph);

}  // namespace arbalest
