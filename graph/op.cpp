#include "graph/op.h"

#include <fmt/format.h>

#include <stdexcept>

namespace arbalest {
namespace {

const OperandSpec* operand_spec(const std::vector<OperandSpec>& specs, size_t i) {
  if (i < specs.size()) return &specs[i];
  const bool open_ended = !specs.empty() && specs.back().arity == OperandSpec::Variadic;
  return open_ended ? &specs.back() : nullptr;
}

// Appends a node with inferred types and returns its outputs.
std::vector<ValueId> append(Graph& graph, std::string_view op, std::string name, std::vector<ValueId> inputs,
                            int output_count, Attributes attributes, const Node& origin, Stage stage) {
  const NodeId id =
      graph.add_node(builtin_ops().get(op), std::move(name), std::move(inputs), output_count, std::move(attributes));
  graph.nodes[size_t(id)].where = origin.where;
  graph.nodes[size_t(id)].stage = stage;
  infer(graph, id);
  return graph.nodes[size_t(id)].outputs;
}

}  // namespace

const OperandSpec* Op::input_spec(size_t i) const {
  return operand_spec(inputs, i);
}
const OperandSpec* Op::output_spec(size_t i) const {
  return operand_spec(outputs, i);
}

const AttributeSpec* Op::attribute_spec(std::string_view wanted) const {
  for (const AttributeSpec& spec : attributes) {
    if (spec.name == wanted) return &spec;
  }
  return nullptr;
}

void InferContext::set_output(size_t i, TensorType type) {
  if (i >= node().outputs.size() || node().outputs[i] == kNone) return;
  graph_.values[size_t(node().outputs[i])].type = std::move(type);
}

std::vector<ValueId> GradContext::add(std::string_view op, std::string_view label, std::vector<ValueId> inputs,
                                      int output_count, Attributes attributes) {
  const Node origin = node();
  return append(graph_, op, fmt::format("{}.{}", origin.name, label), std::move(inputs), output_count,
                std::move(attributes), origin, Stage::Backward);
}

ValueId ExpandContext::parameter(std::string_view label, Shape shape, Initializer initializer) {
  const ValueId id = state(label, std::move(shape), std::move(initializer));
  graph_.values[size_t(id)].role = Role::Parameter;
  return id;
}

ValueId ExpandContext::state(std::string_view label, Shape shape, Initializer initializer) {
  const std::string& owner = graph_.values[size_t(node_.outputs[0])].name;
  const ValueId id =
      graph_.add_value(fmt::format("{}.{}", owner, label), {DataType::Float32, std::move(shape)}, Role::State);
  graph_.values[size_t(id)].initializer = std::move(initializer);
  graph_.values[size_t(id)].where = node_.where;
  return id;
}

std::vector<ValueId> ExpandContext::add(std::string_view op, std::string_view label, std::vector<ValueId> inputs,
                                        int output_count, Attributes attributes) {
  std::string name = label.empty() ? node_.name : fmt::format("{}.{}", node_.name, label);
  return append(graph_, op, std::move(name), std::move(inputs), output_count, std::move(attributes), node_,
                node_.stage);
}

void ExpandContext::replace_output(size_t i, ValueId value) {
  if (i >= node_.outputs.size() || node_.outputs[i] == kNone) return;
  graph_.replace_uses(node_.outputs[i], value);
  std::swap(graph_.values[size_t(node_.outputs[i])].name, graph_.values[size_t(value)].name);
}

Op& OpRegistry::add(Op op) {
  if (find(op.qualified_name())) throw std::logic_error("operator registered twice: " + op.qualified_name());
  return ops_.emplace_back(std::move(op));
}

Op* OpRegistry::find(std::string_view qualified_name) {
  for (Op& op : ops_) {
    if (op.qualified_name() == qualified_name) return &op;
  }
  return nullptr;
}

const Op* OpRegistry::find(std::string_view qualified_name) const {
  return const_cast<OpRegistry*>(this)->find(qualified_name);
}

const Op& OpRegistry::get(std::string_view qualified_name) const {
  if (const Op* op = find(qualified_name)) return *op;
  throw std::logic_error(fmt::format("no operator is registered as '{}'", qualified_name));
}

}  // namespace arbalest
