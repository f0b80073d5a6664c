#include "tools/session_setup.h"

#include "executor/device_list.h"
#include "graph/graph_file.h"
#include "graph/overrides.h"

namespace arbalest {

Graph load_with_overrides(const PlanOptions& options) {
  Graph graph = load_graph(options.graph, builtin_ops());
  for (const std::string& assignment : options.set) apply_override(graph, assignment);
  return graph;
}

SessionOptions session_options(const PlanOptions& options) {
  SessionOptions session;
  session.devices = parse_devices(options.devices, default_devices);
  session.learners = options.learners;
  session.precision = options.precision;
  session.seed = options.seed;
  session.deterministic = options.deterministic;
  session.epochs = options.epochs;
  session.iterations = options.iterations;
  session.threads = options.threads;
  return session;
}

}  // namespace arbalest
