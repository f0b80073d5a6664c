// SPDX-License-Identifier: Apache-2.0
#include "graph/constants.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/names.h"
#include "graph/verify/host_node.h"

namespace arbalest {
namespace {

using Bytes = std::vector<std::byte>;

template <typename T, typename Number>
std::vector<Number> widened(const Bytes& bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(T));
  for (size_t i = 0; i < numbers.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    numbers[i] = static_cast<Number>(element);
  }
  return numbers;
}

std::vector<int64_t> integers(DataType type, const Bytes& bytes) {
  switch (type) {
    case DataType::Int64: return widened<int64_t, int64_t>(bytes);
    case DataType::Int32: return widened<int32_t, int64_t>(bytes);
    default: return widened<uint8_t, int64_t>(bytes);
  }
}

std::vector<double> floats(DataType type, const Bytes& bytes) {
  switch (type) {
    case DataType::Float64: return widened<double, double>(bytes);
    case DataType::Bfloat16: return widened<bfloat16, double>(bytes);
    case DataType::Float32: return widened<float, double>(bytes);
    default: {
      const std::vector<int64_t> whole = integers(type, bytes);
      return {whole.begin(), whole.end()};
    }
  }
}

// Whether the node's outputs depend on nothing but what is known of its inputs.
bool is_known(const Graph& graph, const Node& node) {
  if (!node.op->cpu || node.op->side_effect || node.op->random || node.op->collective || node.inputs.empty())
    return false;
  bool any = false;
  for (const ValueId input : node.inputs) {
    if (input == kNone) continue;
    any = true;
    if (graph.values[input].type.layout != Layout::RowMajor || !content_of(graph, input)) return false;
  }
  int64_t bytes = 0;
  for (const ValueId output : node.outputs) {
    if (output == kNone) continue;
    const TensorType& type = graph.values[output].type;
    if (type.layout != Layout::RowMajor || type.bytes() > kMostContentBytes) return false;
    bytes += type.bytes();
  }
  return any && bytes <= kMostContentBytes;
}

// How many read each value: nodes, and the graph's outputs.
Table<ValueId, int> readers_of(const Graph& graph) {
  Table<ValueId, int> readers(graph.values.size(), 0);
  const auto count = [&](const std::vector<ValueId>& values) {
    for (const ValueId value : values) {
      if (value != kNone) ++readers[value];
    }
  };
  for (const Node& node : graph.nodes) count(node.inputs);
  count(graph.outputs);
  return readers;
}

}  // namespace

std::shared_ptr<const Bytes> content_of(const Graph& graph, ValueId id) {
  const Value& value = graph.values[id];
  if (value.role == Role::Activation) return value.content;
  const bool constant = value.role == Role::Constant && value.initializer.kind == Initializer::Kind::Data;
  return constant ? value.initializer.data : nullptr;
}

std::optional<double> number_of(const Graph& graph, ValueId id) {
  const Value& value = graph.values[id];
  if (value.role == Role::Constant && value.initializer.kind == Initializer::Kind::Constant && value.view.base == kNone)
    return value.initializer.a;
  const auto content = content_of(graph, id);
  const size_t size = size_of(value.type.dtype);
  const bool same = content && content->size() >= size &&
                    std::equal(content->begin() + int64_t(size), content->end(), content->begin());
  if (!same) return std::nullopt;
  return floats(value.type.dtype, {content->begin(), content->begin() + int64_t(size)}).front();
}

double infer_content(Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  for (const ValueId output : node.outputs) {
    if (output != kNone) graph.values[output].content = nullptr;
  }
  if (node.op->content && node.outputs[0] != kNone) {
    Value& output = graph.values[node.outputs[0]];
    Bytes content = node.op->content(InferContext(graph, id));
    if (int64_t(content.size()) != output.type.bytes()) return 0;  // CastLike of what is not known
    output.content = std::make_shared<Bytes>(std::move(content));
    return double(output.type.bytes());
  }
  if (!is_known(graph, node)) return 0;
  const HostNode host(graph, node);
  if (!host.has_kernel() || cost_of(graph, host.node()).flops > kMostContentOperations) return 0;
  std::vector<std::shared_ptr<Bytes>> results;
  try {
    results = host.run([&](ValueId input) { return content_of(graph, input); });
  } catch (const RunError& error) {
    throw GraphError(node.where, error.what());  // it names the node
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (node.outputs[i] != kNone) graph.values[node.outputs[i]].content = results[i];
  }
  return cost_of(graph, host.node()).flops + operand_bytes(graph, host.node());
}

Attribute content_as(const Graph& graph, const Node& node, size_t i, AttributeKind kind) {
  const Value& value = graph.values[node.inputs[i]];
  const std::string what = fmt::format("input '{}' ('{}')", node.op->input_spec(i)->name, value.name);
  const auto content = content_of(graph, node.inputs[i]);
  if (!content) {
    fail(node,
         fmt::format("{} is computed when the graph runs; expected a constant, or what follows from constants and "
                     "shapes",
                     what));
  }
  const bool list = kind == AttributeKind::Ints || kind == AttributeKind::Floats;
  const bool whole = kind == AttributeKind::Int || kind == AttributeKind::Ints;
  const bool fits = list ? value.type.shape.size() <= 1 : value.type.elements() == 1;
  if (!fits || (whole && is_floating(value.type.dtype))) {
    const char* const one = whole ? "one integer" : "one number";
    fail(node, fmt::format("{} is {}, expected {}", what, to_string(value.type),
                           !list   ? one
                           : whole ? "a list of integers"
                                   : "a list of numbers"));
  }
  if (whole) {
    std::vector<int64_t> numbers = integers(value.type.dtype, *content);
    return list ? Attribute(std::move(numbers)) : Attribute(numbers[0]);
  }
  std::vector<double> numbers = floats(value.type.dtype, *content);
  return list ? Attribute(std::move(numbers)) : Attribute(numbers[0]);
}

std::optional<size_t> constant_operand(const Node& node, std::string_view name) {
  const std::vector<OperandSpec>& specs = node.op->inputs;
  for (size_t i = 0; i < std::min(specs.size(), node.inputs.size()); ++i) {
    if (specs[i].constant && specs[i].name == name && node.inputs[i] != kNone) return i;
  }
  return std::nullopt;
}

void take_operands(const Graph& graph, Node& node) {
  const std::vector<OperandSpec>& specs = node.op->inputs;
  bool any = false;
  for (size_t i = 0; i < std::min(specs.size(), node.inputs.size()); ++i) {
    if (!specs[i].constant || node.inputs[i] == kNone) continue;
    const AttributeKind kind = node.op->attribute_spec(specs[i].name)->kind;
    node.attributes.set(specs[i].name, content_as(graph, node, i, kind), node.where);
    node.inputs[i] = kNone;
    any = true;
  }
  while (any && !node.inputs.empty() && node.inputs.back() == kNone) node.inputs.pop_back();
}

bool is_choice(const Node& node) {
  return node.is(op::Choose);
}

size_t chosen_operand(const Graph& graph, const Node& node) {
  if (node.inputs.empty() || node.inputs[kChoiceCondition] == kNone) return 0;
  const auto content = content_of(graph, node.inputs[kChoiceCondition]);
  if (!content || content->size() != 1) return 0;
  return content->front() != std::byte{0} ? kChoiceThen : kChoiceElse;
}

void leave_out_unchosen(Graph& graph) {
  Table<ValueId, int> readers = readers_of(graph);
  Table<NodeId, bool> erased(graph.nodes.size(), false);
  std::vector<ValueId> left_out;
  const auto drop = [&](ValueId& input) {
    if (input == kNone) return;
    if (--readers[input] == 0) left_out.push_back(input);
    input = kNone;
  };
  for (Node& node : graph.nodes) {
    if (!is_choice(node) || node.inputs.size() <= kChoiceElse) continue;
    const size_t chosen = chosen_operand(graph, node);
    if (chosen != 0 && node.inputs[chosen] != kNone)
      drop(node.inputs[chosen == kChoiceThen ? kChoiceElse : kChoiceThen]);
  }
  while (!left_out.empty()) {
    Value& value = graph.values[left_out.back()];
    left_out.pop_back();
    if (value.role == Role::Parameter) value.role = Role::Constant;  // nothing trains it
    if (value.producer == kNone) continue;
    Node& node = graph.nodes[value.producer];
    const bool read = std::any_of(node.outputs.begin(), node.outputs.end(),
                                  [&](ValueId output) { return output != kNone && readers[output] > 0; });
    if (read || node.op->side_effect || erased[value.producer]) continue;
    erased[value.producer] = true;
    std::for_each(node.inputs.begin(), node.inputs.end(), drop);
  }
  erase_nodes(graph, erased);
}

void settle_choices(Graph& graph) {
  for (Node& node : graph.nodes) {
    if (!is_choice(node)) continue;
    node.inputs = {node.inputs[chosen_operand(graph, node)]};
    node.op = &graph.op(op::Identity);
  }
}

}  // namespace arbalest
