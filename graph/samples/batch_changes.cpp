// SPDX-License-Identifier: Apache-2.0
#include "graph/samples/batch_changes.h"

#include <fmt/format.h>

#include "graph/constants.h"
#include "graph/names.h"
#include "graph/op.h"

namespace arbalest {

void BatchChanger::change(Node& node, const BatchChange& change) {
  using Kind = BatchChange::Kind;
  switch (change.kind) {
    case Kind::States:
      node.attributes.set(node.op->input_spec(change.input)->name, change.list, node.where);
      node.inputs[change.input] = kNone;
      while (!node.inputs.empty() && node.inputs.back() == kNone) node.inputs.pop_back();
      return;
    case Kind::Reads: node.inputs[change.input] = list(node, change); return;
    case Kind::Spreads:
      node.inputs[change.input] = add(node, op::Expand, {node.inputs[change.input], list(node, change)});
      return;
    case Kind::Holds:
      node.inputs[change.input] = constant(node, change.type, {Initializer::Kind::Data, 0, change.content});
      return;
    case Kind::Names:
      node.op = &graph_.op(op::Reshape);
      node.attributes = {};
      node.attributes.set("shape", change.list, node.where);
      node.inputs.resize(1);
  }
}

ValueId BatchChanger::add(const Node& node, std::string_view op, std::vector<ValueId> inputs, Attributes attributes) {
  std::string name;
  do name = fmt::format("{}.batch{}", node.name, added_++);
  while (graph_.find_value(name) != kNone || graph_.find_node(name) != kNone);
  const NodeId made = graph_.add_node(graph_.op(op), name, std::move(inputs), 1, std::move(attributes));
  graph_.nodes[made].where = node.where;
  return graph_.nodes[made].outputs[0];
}

ValueId BatchChanger::constant(const Node& node, TensorType type, Initializer initializer) {
  const ValueId value =
      graph_.add_value(fmt::format("{}.batch{}", node.name, added_++), std::move(type), Role::Constant);
  graph_.values[value].initializer = std::move(initializer);
  return value;
}

ValueId BatchChanger::constant(const Node& node, const std::vector<int64_t>& numbers) {
  return constant(node, {DataType::Int64, {int64_t(numbers.size())}}, data_of(numbers));
}

// The change's list as a value.
ValueId BatchChanger::list(const Node& node, const BatchChange& change) {
  const auto at = change.list.begin() + int64_t(change.place);
  ValueId batch = add(node, op::Shape, {source_}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  if (change.multiple != 1) {
    const std::vector<int64_t> multiple = {change.multiple};
    batch = add(node, "Mul", {batch, constant(node, multiple)});
  }
  std::vector<ValueId> parts;
  if (at != change.list.begin()) parts.push_back(constant(node, std::vector<int64_t>(change.list.begin(), at)));
  parts.push_back(batch);
  if (at + 1 != change.list.end()) parts.push_back(constant(node, std::vector<int64_t>(at + 1, change.list.end())));
  return parts.size() == 1 ? batch : add(node, "Concat", std::move(parts), {{"axis", int64_t{0}}});
}

}  // namespace arbalest
