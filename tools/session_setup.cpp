#include "tools/session_setup.h"

#include "executor/device_list.h"
#include "graph/graph_file.h"
#include "graph/op.h"
#include "graph/overrides.h"
#include "graph/passes/passes.h"

namespace arbalest {

Graph load_with_overrides(const GraphOptions& options) {
  Graph graph = load_graph(options.graph, builtin_ops());
  for (const std::string& assignment : options.set) apply_override(graph, assignment);
  return graph;
}

Graph without_validation(Graph graph) {
  std::vector<int64_t> order(graph.nodes.size());
  for (size_t n = 0; n < order.size(); ++n) {
    order[n] = graph.nodes[n].op->qualified_name() == "arbalest.Validate" ? -1 : int64_t(n);
  }
  reorder_nodes(graph, order);  // drops the negative
  return graph;
}

SessionOptions session_options(const GraphOptions& options) {
  SessionOptions session;
  session.devices = parse_devices(options.devices, default_devices);
  session.strategy = options.strategy;
  session.precision = options.precision;
  session.seed = options.seed;
  session.deterministic = options.deterministic;
  session.threads = options.threads;
  return session;
}

SessionOptions session_options(const PlanOptions& options) {
  SessionOptions session = session_options(static_cast<const GraphOptions&>(options));
  session.recalibrate = options.recalibrate;
  session.learners = options.learners;
  session.batch_total = options.batch_total;
  session.epochs = options.epochs;
  session.iterations = options.iterations;
  return session;
}

}  // namespace arbalest
