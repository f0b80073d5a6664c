#include <vector>

#include "graph/constants.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// Moves what constant operands hold into the attributes of the same names.
void take_operands(Graph& graph, Node& node) {
  const std::vector<OperandSpec>& specs = node.op->inputs;
  for (size_t i = 0; i < std::min(specs.size(), node.inputs.size()); ++i) {
    if (!specs[i].constant || node.inputs[i] == kNone) continue;
    const AttributeKind kind = node.op->attribute_spec(specs[i].name)->kind;
    node.attributes.set(specs[i].name, content_as(graph, node, i, kind), node.where);
    node.inputs[i] = kNone;
  }
  while (!node.inputs.empty() && node.inputs.back() == kNone) node.inputs.pop_back();
}

}  // namespace

void fold_constants(Graph& graph) {
  std::vector<int64_t> key(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    bool known = !node.outputs.empty();
    for (const ValueId output : node.outputs) {
      known = known && (output == kNone || graph.values[size_t(output)].content);
    }
    key[n] = known ? -1 : int64_t(n);
    if (!known) {
      take_operands(graph, node);
      continue;
    }
    for (const ValueId output : node.outputs) {
      if (output == kNone) continue;
      Value& value = graph.values[size_t(output)];
      value.role = Role::Constant;
      value.producer = kNone;
      value.initializer = {Initializer::Kind::Data, 0, std::move(value.content)};
      value.content = nullptr;
    }
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
