#include "tools/command/session_setup.h"

#include "executor/plan/device_list.h"
#include "graph/file/graph_file.h"
#include "graph/file/overrides.h"
#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {

Graph load_with_overrides(const GraphOptions& options) {
  Graph graph = load_graph(options.graph, builtin_ops(), 0, options.models);
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

NamedPaths model_paths(const GraphOptions& options) {
  NamedPaths paths;
  for (const ModelFile& model : options.models) paths.emplace_back("--model", model.path);
  return paths;
}

SessionOptions session_options(const GraphOptions& options) {
  SessionOptions session = options.session;
  session.learners.devices = parse_devices(options.devices, default_devices);
  return session;
}

}  // namespace arbalest
