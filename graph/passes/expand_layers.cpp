#include <algorithm>
#include <numeric>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {

void reorder_nodes(Graph& graph, const std::vector<int64_t>& key) {
  std::vector<size_t> order(graph.nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] < key[b]; });
  std::vector<Node> nodes;
  for (const size_t n : order) {
    if (key[n] >= 0) nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
  for (Value& value : graph.values) value.producer = kNone;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output != kNone) graph.values[size_t(output)].producer = NodeId(n);
    }
  }
}

void expand_layers(Graph& graph, bool standard) {
  constexpr int kDepth = 8;  // a layer may expand into layers; none does so deeper
  for (int depth = 0; depth < kDepth; ++depth) {
    const size_t count = graph.nodes.size();
    std::vector<int64_t> key(count);
    std::iota(key.begin(), key.end(), int64_t{0});
    bool expanded = false;
    for (size_t n = 0; n < count; ++n) {
      const Op& op = *graph.nodes[n].op;
      if (!op.expand || (op.domain.empty() && !standard) || (op.expands && !op.expands(InferContext(graph, NodeId(n)))))
        continue;
      ExpandContext context(graph, graph.nodes[n]);
      graph.nodes[n].name += " (layer)";  // the operator that stands for it takes the name
      context.node().op->expand(context);
      key[n] = -1;
      key.resize(graph.nodes.size(), int64_t(n));
      expanded = true;
    }
    reorder_nodes(graph, key);
    if (!expanded) return;
  }
  throw std::logic_error("layers expand without end");
}

}  // namespace arbalest
