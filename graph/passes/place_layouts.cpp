#include <map>
#include <numeric>

#include "graph/layouts.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// Parameters, states and constants are laid out as the first node wants them that does not take any layout. That costs
// nothing: their first content is brought into that order when it is made or read from a file.
void lay_out_stored_values(Graph& graph) {
  std::vector<bool> settled(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNone || settled[size_t(node.inputs[i])]) continue;
      Value& value = graph.values[size_t(node.inputs[i])];
      const bool stored = value.role == Role::Parameter || value.role == Role::Frozen || value.role == Role::State ||
                          value.role == Role::Constant;
      const auto wanted = node.op->layout;
      if (!stored || value.producer != kNone || !wanted) continue;
      value.type = value.type.in(*wanted);
      settled[size_t(node.inputs[i])] = true;
    }
  }
}

// A transposition, or Flatten, that moves no element becomes one that shares its input's memory.
void share_unmoved(const Graph& graph, Node& node) {
  const std::string op = node.op->qualified_name();
  if (op == "Flatten" && graph.values[size_t(node.inputs[0])].type.lies_as(Layout::RowMajor)) {
    node.op = &builtin_ops().get("arbalest.FlattenInPlace");
  }
  if (op != "Transpose") return;
  const auto layout_of = [&](ValueId value) { return graph.values[size_t(value)].type.layout; };
  if (keeps_memory(ints_attribute(node, "perm"), layout_of(node.inputs[0]), layout_of(node.outputs[0]))) {
    node.op = &builtin_ops().get("arbalest.TransposeInPlace");
  }
}

}  // namespace

void place_layouts(Graph& graph) {
  lay_out_stored_values(graph);
  const size_t count = graph.nodes.size();
  std::vector<int64_t> key(count);
  for (size_t n = 0; n < count; ++n) key[n] = 2 * int64_t(n) + 1;
  std::map<std::pair<ValueId, Layout>, ValueId> converted;  // once for all readers
  for (size_t n = 0; n < count; ++n) {
    for (size_t i = 0; i < graph.nodes[n].inputs.size(); ++i) {
      const ValueId input = graph.nodes[n].inputs[i];
      const auto wanted = graph.nodes[n].op->layout;
      if (input == kNone || !wanted) continue;
      ValueId& fitting = converted.try_emplace({input, *wanted}, kNone).first->second;
      if (fitting == kNone) fitting = in_layout(graph, input, *wanted, graph.nodes[n]);
      key.resize(graph.nodes.size(), 2 * int64_t(n));  // right before the first reader
      graph.nodes[n].inputs[i] = fitting;
    }
    infer(graph, NodeId(n));  // what an operator makes may be laid out as what it reads
    share_unmoved(graph, graph.nodes[n]);
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
