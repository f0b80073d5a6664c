#pragma once
// From options to what executor/session/session.h takes.

#include "executor/session/output_paths.h"
#include "executor/session/session.h"
#include "tools/command/options.h"

namespace arbalest {

// The graph as the file says, changed by --set; not yet verified. Throws GraphError.
Graph load_with_overrides(const GraphOptions& options);

// The files of the models that --model names.
NamedPaths model_paths(const GraphOptions& options);

// The graph as it trains when nothing validates it.
Graph without_validation(Graph graph);

// The session's options with the devices looked up. Throws GraphError for a wrong list of devices.
SessionOptions session_options(const GraphOptions& options);

}  // namespace arbalest
