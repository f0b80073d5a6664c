// SPDX-License-Identifier: Apache-2.0
#include "graph/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "base/checked.h"
#include "graph/constants.h"
#include "graph/layouts.h"

namespace arbalest {
namespace {

const OperandSpec* operand_spec(const std::vector<OperandSpec>& specs, size_t i) {
  if (i < specs.size()) return &specs[i];
  const bool open_ended = !specs.empty() && specs.back().arity == OperandSpec::Variadic;
  return open_ended ? &specs.back() : nullptr;
}

// Extents follow from attributes and may be anything: sizes that no memory holds end here, so that products of extents
// are right everywhere else.
void check_size(const Node& node, std::string_view what, const TensorType& type) {
  __int128 bytes = __int128(size_of(type.dtype));
  for (const int64_t extent : type.shape) {
    if (extent == -1) return;  // symbolic: verify() refuses it
    if (extent < 0) fail(node, fmt::format("{} would be {}: a negative extent", what, to_string(type)));
    if (extent == 0) return;
    if (bytes <= kMostBytes) bytes *= extent;
  }
  if (bytes <= kMostBytes) return;
  fail(node, fmt::format("{} would be {}: more than any memory holds (2^47 bytes)", what, to_string(type)));
}

// Appends a node with inferred types, of the stage and place of `origin`, and returns its outputs. Of forward nodes,
// place_layouts brings the inputs into the layout that the operator wants; backward is built when that has been done.
std::vector<ValueId> append(Graph& graph, std::string_view op, std::string name, std::vector<ValueId> inputs,
                            int output_count, Attributes attributes, const Node& origin) {
  const Op& kind = graph.op(op);
  for (ValueId& input : inputs) {
    if (input != kNone && kind.layout && origin.stage == Stage::Backward)
      input = in_layout(graph, input, *kind.layout, origin);
  }
  const NodeId id = graph.add_node(kind, std::move(name), std::move(inputs), output_count, std::move(attributes));
  graph.nodes[id].where = origin.where;
  graph.nodes[id].stage = origin.stage;
  // An output without a gradient may be all that an operator's gradient is made of.
  for (size_t i = 0; i < kind.inputs.size(); ++i) {
    const std::vector<ValueId>& given = graph.nodes[id].inputs;
    if (kind.inputs[i].arity == OperandSpec::Required && (i >= given.size() || given[i] == kNone)) {
      fail(graph.nodes[id], fmt::format("input '{}' is left out", kind.inputs[i].name));
    }
  }
  infer(graph, id);
  return graph.nodes[id].outputs;
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

const Node* InferContext::producer(size_t i) const {
  const NodeId producer = has_input(i) ? graph_.values[node().inputs[i]].producer : kNone;
  return producer == kNone ? nullptr : &graph_.nodes[producer];
}

// The operand's content, or the attribute as written, or its default.
Attribute InferContext::constant(std::string_view name, AttributeKind kind) const {
  if (const auto operand = constant_operand(node(), name)) return content_as(graph_, node(), *operand, kind);
  switch (kind) {
    case AttributeKind::Ints: return ints_attribute(node(), name);
    case AttributeKind::Floats: return floats_attribute(node(), name);
    case AttributeKind::Int: return int_attribute(node(), name);
    default: return float_attribute(node(), name);
  }
}

std::vector<int64_t> InferContext::ints(std::string_view name) const {
  return std::get<std::vector<int64_t>>(constant(name, AttributeKind::Ints));
}
std::vector<double> InferContext::floats(std::string_view name) const {
  return std::get<std::vector<double>>(constant(name, AttributeKind::Floats));
}
int64_t InferContext::integer(std::string_view name) const {
  return std::get<int64_t>(constant(name, AttributeKind::Int));
}
double InferContext::number(std::string_view name) const {
  return std::get<double>(constant(name, AttributeKind::Float));
}

bool InferContext::states(std::string_view name) const {
  return constant_operand(node(), name) || node().attributes.find(name);
}

void InferContext::set_output(size_t i, TensorType type) {
  if (i >= node().outputs.size() || node().outputs[i] == kNone) return;
  if (node().op->layout) type = type.in(*node().op->layout);
  Value& output = graph_.values[node().outputs[i]];
  check_size(node(), fmt::format("output '{}'", output.name), type);
  output.type = std::move(type);
}

std::vector<ValueId> GradContext::add(std::string_view op, std::string_view label, std::vector<ValueId> inputs,
                                      int output_count, Attributes attributes) {
  Node origin = node();
  origin.stage = Stage::Backward;
  return append(graph_, op, fmt::format("{}.{}", origin.name, label), std::move(inputs), output_count,
                std::move(attributes), origin);
}

void GradContext::add_input_gradient(std::string_view op, std::vector<ValueId> more, Attributes attributes) {
  if (!needs_gradient(0)) return;
  more.insert(more.begin(), output_gradient(0));
  set_input_gradient(0, add(op, "grad_input", std::move(more), 1, std::move(attributes))[0]);
}

ValueId ExpandContext::parameter(std::string_view label, Shape shape, Initializer initializer) {
  const ValueId id = state(label, std::move(shape), std::move(initializer));
  graph_.values[id].role = Role::Parameter;
  return id;
}

ValueId ExpandContext::state(std::string_view label, Shape shape, Initializer initializer) {
  const ValueId first = *std::find_if(node_.outputs.begin(), node_.outputs.end(), [](ValueId v) { return v != kNone; });
  const std::string& owner = graph_.values[first].name;
  check_size(node_, fmt::format("parameter '{}'", label), {DataType::Float32, shape});
  const ValueId id =
      graph_.add_value(fmt::format("{}.{}", owner, label), {DataType::Float32, std::move(shape)}, Role::State);
  graph_.values[id].initializer = std::move(initializer);
  graph_.values[id].where = node_.where;
  return id;
}

ValueId ExpandContext::constant(std::string_view label, DataType dtype, double number) {
  const ValueId id = state(label, {}, {Initializer::Kind::Constant, number, nullptr});
  graph_.values[id].role = Role::Constant;
  graph_.values[id].type.dtype = dtype;
  return id;
}

ValueId ExpandContext::constant(std::string_view label, DataType dtype, const std::vector<double>& numbers) {
  const auto data = [&]<typename T>(T) { return data_of(std::vector<T>(numbers.begin(), numbers.end())); };
  Initializer initializer;
  switch (dtype) {
    case DataType::Float64: initializer = data(double{}); break;
    case DataType::Bfloat16: initializer = data(bfloat16{}); break;
    case DataType::Int64: initializer = data(int64_t{}); break;
    default: initializer = data(float{}); break;
  }
  const ValueId id = state(label, {int64_t(numbers.size())}, initializer);
  graph_.values[id].role = Role::Constant;
  graph_.values[id].type.dtype = dtype;
  return id;
}

std::vector<ValueId> ExpandContext::add(std::string_view op, std::string_view label, std::vector<ValueId> inputs,
                                        int output_count, Attributes attributes) {
  std::string name = label.empty() ? node_.name : fmt::format("{}.{}", node_.name, label);
  return append(graph_, op, std::move(name), std::move(inputs), output_count, std::move(attributes), node_);
}

void ExpandContext::replace_output(size_t i, ValueId value) {
  if (i >= node_.outputs.size() || node_.outputs[i] == kNone) return;
  const ValueId output = node_.outputs[i];
  replaced_[output] = value;
  // The new value takes the output's name. An input of the node, which may be a parameter, keeps its own.
  if (std::find(node_.inputs.begin(), node_.inputs.end(), value) != node_.inputs.end()) return;
  std::string name = graph_.values[output].name;
  graph_.rename(output, graph_.values[value].name);
  graph_.rename(value, std::move(name));
}

void check_record(const Op& op) {
  const auto refuse = [&](std::string_view fault) {
    throw GraphError(fmt::format("operator '{}' cannot be registered: {}", op.qualified_name(), fault));
  };
  if (op.name.empty()) refuse("it has no name");
  if (op.doc.empty()) refuse("it has no documentation (Op::doc, one line)");
  if (!op.infer) refuse("it has no type inference (Op::infer)");
  const bool kernel = op.cpu || op.cuda;
  if (!op.expand && !kernel && !op.content && !op.prepare) {
    refuse("it has neither a kernel (Op::cpu, Op::cuda), an expansion (Op::expand) nor a preparation (Op::prepare)");
  }
  if (op.prepare && (kernel || op.expand || op.inputs.size() != 1 || op.outputs.size() != 1)) {
    refuse("it is a host node (Op::prepare), which has one input, one output and no kernels");
  }
  if (op.expand && kernel && !op.expands) {
    refuse("it has an expansion (Op::expand), so its kernels would never run: nothing says which nodes (Op::expands)");
  }
  if (op.outputs.empty() && !op.side_effect) refuse("it has no outputs and no side effect");
  for (const auto* operands : {&op.inputs, &op.outputs}) {
    for (const OperandSpec& operand : *operands) {
      if (operand.name.empty()) refuse("an operand has no name");
      if (operand.arity == OperandSpec::Variadic && &operand != &operands->back()) {
        refuse(fmt::format("operand '{}' is variadic but not the last", operand.name));
      }
    }
  }
  for (const OperandSpec& operand : op.inputs) {
    if (!operand.constant || op.content) continue;
    if (operand.arity != OperandSpec::Optional)
      refuse(fmt::format("its constant operand '{}' is not optional", operand.name));
    if (!op.attribute_spec(operand.name)) {
      refuse(fmt::format("its constant operand '{}' has no attribute of the same name", operand.name));
    }
  }
  const bool rows = op.metric && op.metric->keeps == MetricSpec::Keeps::Rows;
  if (rows && !op.metric->finish)
    refuse("its metric keeps rows, and nothing makes a number of them (MetricSpec::finish)");
  for (const AttributeSpec& attribute : op.attributes) {
    if (attribute.name.empty()) refuse("an attribute has no name");
    if (!attribute.fallback || convert(*attribute.fallback, attribute.kind)) continue;
    refuse(fmt::format("the default of attribute '{}' is {}, expected {}", attribute.name,
                       to_string(*attribute.fallback), name_of(attribute.kind)));
  }
}

Op& OpRegistry::add(Op op) {
  const std::lock_guard lock(mutex_);
  for (const Op& known : ops_) {
    if (known.qualified_name() == op.qualified_name()) {
      throw GraphError(fmt::format("operator '{}' is registered already", op.qualified_name()));
    }
  }
  return ops_.emplace_back(std::move(op));
}

bool Op::is(std::string_view qualified_name) const {
  if (domain.empty()) return qualified_name == name;
  return qualified_name.size() == domain.size() + 1 + name.size() && qualified_name.starts_with(domain) &&
         qualified_name[domain.size()] == '.' && qualified_name.ends_with(name);
}

Op* OpRegistry::find(std::string_view qualified_name) {
  const std::lock_guard lock(mutex_);
  for (Op& op : ops_) {
    if (op.is(qualified_name)) return &op;
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

std::vector<std::reference_wrapper<const Op>> OpRegistry::all() const {
  const std::lock_guard lock(mutex_);
  return {ops_.begin(), ops_.end()};
}

const Op* OpRegistry::find_optimizer(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(ops_.begin(), ops_.end(), [&](const Op& op) { return op.optimizer && op.optimizer->name == name; });
  return found == ops_.end() ? nullptr : &*found;
}

double operand_bytes(const Graph& graph, const Node& node) {
  double bytes = 0;
  for (const auto* operands : {&node.inputs, &node.outputs}) {
    for (const ValueId value : *operands) {
      if (value != kNone) bytes += double(graph.values[value].type.bytes());
    }
  }
  return bytes;
}

Cost cost_of(const Graph& graph, const Node& node) {
  return node.op->cost ? node.op->cost(graph, node) : Cost{0, operand_bytes(graph, node)};
}

}  // namespace arbalest
