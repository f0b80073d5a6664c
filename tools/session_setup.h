#pragma once
// From options to what executor/session.h takes.

#include "executor/session.h"
#include "tools/options.h"

namespace arbalest {

// The graph as the file says, changed by --set; not yet verified. Throws GraphError.
Graph load_with_overrides(const GraphOptions& options);

// The graph as it trains when nothing validates it.
Graph without_validation(Graph graph);

// Throw GraphError for a wrong list of devices.
SessionOptions session_options(const GraphOptions& options);
SessionOptions session_options(const PlanOptions& options);

}  // namespace arbalest
