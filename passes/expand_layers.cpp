// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "graph/constants.h"
#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {

namespace {

// Layers' outputs and what stands for them. A node's inputs are looked up when its turn comes, as readers come after
// what they read. To search the graph for readers at every layer would take time quadratic in the number of layers.
class Replacements {
 public:
  explicit Replacements(const Graph& graph) : by_value_(graph.values.size(), kNone) {}
  Table<ValueId, ValueId>& by_value() { return by_value_; }
  void apply(std::vector<ValueId>& readers) const {
    for (ValueId& value : readers) value = of(value);
  }
  ValueId of(ValueId value) const {
    const bool known = value != kNone && size_t(value) < by_value_.size() && by_value_[value] != kNone;
    return known ? by_value_[value] : value;
  }

 private:
  Table<ValueId, ValueId> by_value_;  // kNone: the value itself. Values from before any expansion
};

// Values that are asked for by their names: the graph's outputs, the loss, and metrics.
std::unordered_set<ValueId> named_values(const Graph& graph) {
  std::unordered_set<ValueId> named(graph.outputs.begin(), graph.outputs.end());
  for (const Node& node : graph.nodes) {
    if (is_rule(graph, node)) named.insert(node.inputs.begin(), node.inputs.end());
  }
  return named;
}

// Keeps the name of a layer's output that is asked for by its name, if the layer is gone and its input stands for the
// output. The input takes that name if it is an activation; a parameter keeps its own. Returns false if the input is
// asked for as well and the operator, with a kernel and no other output, can stay: one of two names would be lost.
bool keep_name(Graph& graph, const Node& node, const Replacements& replaced, std::unordered_set<ValueId>& named) {
  for (const ValueId output : node.outputs) {
    const ValueId value = replaced.of(output);
    if (value == output || !named.contains(output)) continue;
    const bool input = std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
    if (input && graph.values[value].role == Role::Activation) {
      if (named.contains(value) && node.op->cpu && node.outputs.size() == 1) return false;
      std::string name = graph.values[output].name;
      graph.rename(output, graph.values[value].name);
      graph.rename(value, std::move(name));
    }
    named.insert(value);
  }
  return true;
}

// Values that nodes compute are no states, even if a batch norm takes them for its running statistics. It writes over
// them, so that nothing else may read them.
void drop_computed_states(Graph& graph) {
  const Table<ValueId, std::vector<NodeId>> readers = graph.consumers();
  std::erase_if(graph.carries, [&](const Carry& carry) {
    const Value& current = graph.values[carry.current];
    const std::vector<NodeId>& all = readers[carry.current];
    return current.producer != kNone && !current.content && all.size() == 1 &&
           all[0] == graph.values[carry.next].producer;
  });
}

}  // namespace

bool is_rule(const Graph& graph, const Node& node) {
  return node.output() != kNone && graph.values[node.output()].type.dtype == DataType::Token;
}

void expand_layers(Graph& graph, bool standard) {
  constexpr int kDepth = 8;  // a layer may expand into layers; none does so deeper
  for (int depth = 0; depth < kDepth; ++depth) {
    const IdRange<NodeId> nodes = graph.nodes.ids();
    Table<NodeId, int64_t> key(graph.nodes.size());
    std::iota(key.begin(), key.end(), int64_t{0});
    bool expanded = false;
    Replacements replaced(graph);
    std::unordered_set<ValueId> named = named_values(graph);
    for (const NodeId n : nodes) {
      const Op& op = *graph.nodes[n].op;
      replaced.apply(graph.nodes[n].inputs);
      if (!op.expand || (op.domain.empty() && !standard) || (op.expands && !op.expands(InferContext(graph, n))))
        continue;
      Node layer = graph.nodes[n];
      take_operands(graph, layer);  // what it is expanded into may depend on them
      ExpandContext context(graph, layer, replaced.by_value());
      graph.nodes[n].name += " (layer)";  // the operator that stands for it takes the name
      context.node().op->expand(context);
      if (!keep_name(graph, context.node(), replaced, named)) {
        graph.nodes[n].name = context.node().name;
        replaced.by_value()[graph.nodes[n].output()] = kNone;
        continue;
      }
      key[n] = -1;
      key.resize(graph.nodes.size(), int64_t(n));
      expanded = true;
    }
    replaced.apply(graph.outputs);
    for (Carry& carry : graph.carries) carry.next = replaced.of(carry.next);
    reorder_nodes(graph, key);
    if (!expanded) return drop_computed_states(graph);
  }
  throw std::logic_error("layers expand without end");
}

}  // namespace arbalest
