#include "graph/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include "graph/constants.h"
#include "graph/error.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// The name itself, or with the first number that is free. After many, it is a number that is free after one that is
// taken, found by halving: to try each would take time quadratic in how many there are.
std::string unique_name(const Graph& graph, const std::string& wanted) {
  constexpr int64_t kTriedEach = 64;
  const auto numbered = [&](int64_t number) { return fmt::format("{}:{}", wanted, number); };
  const auto is_free = [&](int64_t number) { return graph.find_value(numbered(number)) == kNone; };
  if (graph.find_value(wanted) == kNone) return wanted;
  for (int64_t i = 1; i < kTriedEach; ++i) {
    if (is_free(i)) return numbered(i);
  }
  int64_t taken = kTriedEach - 1, unused = kTriedEach;
  for (; !is_free(unused); unused *= 2) taken = unused;
  while (unused - taken > 1) {
    const int64_t middle = taken + (unused - taken) / 2;
    (is_free(middle) ? unused : taken) = middle;
  }
  return numbered(unused);
}

std::string place_of(const Node& node) {
  return fmt::format("node '{}' ({})", node.name, node.op->qualified_name());
}

// The attribute in the kind its op asks for.
template <typename T>
T attribute(const Node& node, std::string_view name, AttributeKind kind) {
  const AttributeSpec* spec = node.op->attribute_spec(name);
  if (!spec) throw std::logic_error(fmt::format("{} has no attribute '{}'", node.op->qualified_name(), name));
  const NamedAttribute* written = node.attributes.find_named(name);
  if (!written && !spec->fallback) {
    fail(node, fmt::format("attribute '{}' ({}) is missing", name, name_of(spec->kind)));
  }
  const Attribute& value = written ? written->value : *spec->fallback;
  if (auto converted = convert(value, kind)) return std::get<T>(*converted);
  throw GraphError(
      written ? written->where : node.where,
      fmt::format("{}: attribute '{}' is {}, expected {}", place_of(node), name, to_string(value), name_of(kind)));
}

void check_operands(const Node& node, const std::vector<ValueId>& given, const std::vector<OperandSpec>& specs,
                    std::string_view what) {
  const auto required =
      size_t(std::count_if(specs.begin(), specs.end(), [](const auto& s) { return s.arity != OperandSpec::Optional; }));
  const bool open_ended = !specs.empty() && specs.back().arity == OperandSpec::Variadic;
  if (given.size() < required || (given.size() > specs.size() && !open_ended)) {
    const std::string expected = open_ended                 ? fmt::format("at least {}", required)
                                 : required == specs.size() ? fmt::format("{}", required)
                                                            : fmt::format("{} to {}", required, specs.size());
    fail(node, fmt::format("{} {}s given, expected {}", given.size(), what, expected));
  }
  for (size_t i = 0; i < given.size() && what == "input"; ++i) {
    const OperandSpec& spec = specs[std::min(i, specs.size() - 1)];
    if (given[i] == kNone && spec.arity != OperandSpec::Optional) {
      fail(node, fmt::format("input {} ('{}') is left out but required", i + 1, spec.name));
    }
  }
}

void check_choice(const Node& node, const AttributeSpec& spec, const NamedAttribute& given) {
  const auto* text = std::get_if<std::string>(&given.value);
  if (!text || spec.choices.empty()) return;
  if (std::find(spec.choices.begin(), spec.choices.end(), *text) != spec.choices.end()) return;
  throw GraphError(given.where.line ? given.where : node.where,
                   fmt::format("{}: attribute '{}' is \"{}\"; expected one of {}{}", place_of(node), given.name, *text,
                               fmt::join(spec.choices, ", "), did_you_mean(*text, spec.choices)));
}

void check_attributes(const Node& node) {
  std::vector<std::string> known;
  for (const AttributeSpec& spec : node.op->attributes) known.push_back(spec.name);
  for (const NamedAttribute& given : node.attributes) {
    const AttributeSpec* spec = node.op->attribute_spec(given.name);
    if (!spec) {
      throw GraphError(given.where.line ? given.where : node.where,
                       fmt::format("{}: unknown attribute '{}', expected {}{}", place_of(node), given.name,
                                   known.empty() ? "none" : fmt::format("one of {}", fmt::join(known, ", ")),
                                   did_you_mean(given.name, known)));
    }
    if (!convert(given.value, spec->kind)) {
      throw GraphError(given.where.line ? given.where : node.where,
                       fmt::format("{}: attribute '{}' is {}, expected {}", place_of(node), given.name,
                                   to_string(given.value), name_of(spec->kind)));
    }
    check_choice(node, *spec, given);
  }
  for (const AttributeSpec& spec : node.op->attributes) {
    if (!spec.fallback && !node.attributes.find(spec.name) && !constant_operand(node, spec.name)) {
      fail(node, fmt::format("attribute '{}' ({}) is missing: {}", spec.name, name_of(spec.kind), spec.doc));
    }
  }
}

// Once: afterwards passes may change the type (precision, another batch for validation).
void check_declared(Value& value) {
  if (!value.declared) return;
  const TensorType& declared = *value.declared;
  const bool fits = declared.dtype == value.type.dtype &&
                    std::equal(declared.shape.begin(), declared.shape.end(), value.type.shape.begin(),
                               value.type.shape.end(), [](int64_t d, int64_t t) { return d == -1 || d == t; });
  if (!fits) {
    throw GraphError(value.where, fmt::format("value '{}' is {}, declared as {}", value.name, to_string(value.type),
                                              to_string(declared)));
  }
  value.declared.reset();
}

void check_extents(const Value& value) {
  if (std::find(value.type.shape.begin(), value.type.shape.end(), -1) == value.type.shape.end()) return;
  throw GraphError(value.where, fmt::format("the shape of '{}' is not known: {} (-1: symbolic); give the batch size or "
                                            "write a number",
                                            value.name, to_string(value.type)));
}

}  // namespace

ValueId Graph::add_value(std::string value_name, TensorType type, Role role) {
  Value value;
  value.name = unique_name(*this, value_name);
  value.type = std::move(type);
  value.role = role;
  return add_value(std::move(value));
}

void Graph::index(const std::string& value_name, ValueId value) {
  by_name_.emplace(std::hash<std::string_view>{}(value_name), value);
}

ValueId Graph::add_value(Value value) {
  const auto id = ValueId(values.size());
  index(value.name, id);
  values.push_back(std::move(value));
  return id;
}

void Graph::rename(ValueId value, std::string new_name) {
  index(new_name, value);
  values[size_t(value)].name = std::move(new_name);
}

void Graph::set_values(std::vector<Value> all) {
  values = std::move(all);
  by_name_.clear();
  for (size_t v = 0; v < values.size(); ++v) index(values[v].name, ValueId(v));
}

NodeId Graph::add_node(const Op& op, std::string node_name, std::vector<ValueId> node_inputs, int output_count,
                       Attributes attributes) {
  Node node;
  node.op = &op;
  node.inputs = std::move(node_inputs);
  node.attributes = std::move(attributes);
  const auto id = NodeId(nodes.size());
  for (int i = 0; i < output_count; ++i) {
    const ValueId output = add_value(node_name, {});
    values[size_t(output)].producer = id;
    node.outputs.push_back(output);
  }
  node.name = std::move(node_name);
  nodes.push_back(std::move(node));
  return id;
}

ValueId Graph::find_value(std::string_view wanted) const {
  ValueId lowest = kNone;
  const auto [first, last] = by_name_.equal_range(std::hash<std::string_view>{}(wanted));
  for (auto it = first; it != last; ++it) {
    const ValueId value = it->second;
    if (values[size_t(value)].name == wanted && (lowest == kNone || value < lowest)) lowest = value;
  }
  return lowest;
}

NodeId Graph::find_node(std::string_view wanted) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].name == wanted) return NodeId(i);
  }
  return kNone;
}

const Node* Graph::find_op(std::string_view wanted) const {
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) { return node.op->qualified_name() == wanted; });
  return found == nodes.end() ? nullptr : &*found;
}

Node* Graph::find_op(std::string_view wanted) {
  return const_cast<Node*>(std::as_const(*this).find_op(wanted));
}

void Graph::replace_uses(ValueId from, ValueId to) {
  for (Node& node : nodes) std::replace(node.inputs.begin(), node.inputs.end(), from, to);
  std::replace(outputs.begin(), outputs.end(), from, to);
  for (Carry& carry : carries) {
    if (carry.next == from) carry.next = to;
  }
}

std::vector<std::vector<NodeId>> Graph::consumers() const {
  std::vector<std::vector<NodeId>> readers(values.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const ValueId input : nodes[n].inputs) {
      if (input != kNone) readers[size_t(input)].push_back(NodeId(n));
    }
  }
  return readers;
}

View storage_of(const Graph& graph, ValueId value) {
  View storage{value, 0};
  while (graph.values[size_t(storage.base)].view.base != kNone) {
    const View& view = graph.values[size_t(storage.base)].view;
    storage = {view.base, storage.offset_bytes + view.offset_bytes};
  }
  return storage;
}

int64_t int_attribute(const Node& node, std::string_view name) {
  return attribute<int64_t>(node, name, AttributeKind::Int);
}
double float_attribute(const Node& node, std::string_view name) {
  return attribute<double>(node, name, AttributeKind::Float);
}
std::string string_attribute(const Node& node, std::string_view name) {
  return attribute<std::string>(node, name, AttributeKind::String);
}
std::vector<int64_t> ints_attribute(const Node& node, std::string_view name) {
  return attribute<std::vector<int64_t>>(node, name, AttributeKind::Ints);
}
std::vector<double> floats_attribute(const Node& node, std::string_view name) {
  return attribute<std::vector<double>>(node, name, AttributeKind::Floats);
}
std::vector<std::string> strings_attribute(const Node& node, std::string_view name) {
  return attribute<std::vector<std::string>>(node, name, AttributeKind::Strings);
}

void fail(const Node& node, const std::string& message) {
  throw GraphError(node.where, fmt::format("{}: {}", place_of(node), message));
}

namespace {

// As infer(); returns what infer_content() does.
double infer_node(Graph& graph, NodeId id) {
  InferContext context(graph, id);
  const Node& node = graph.nodes[size_t(id)];
  for (size_t i = 0; i < node.inputs.size() && !node.op->prepare; ++i) {
    if (node.inputs[i] == kNone || context.input(i).dtype != DataType::String) continue;
    context.fail(
        fmt::format("input '{}' is {}, files as they are stored; expected a tensor, as RandomResizedCrop or ResizeCrop "
                    "make of them",
                    graph.values[size_t(node.inputs[i])].name, to_string(context.input(i))));
  }
  if (node.op->infer) node.op->infer(context);
  return infer_content(graph, id);
}

// What can be said of a node without the types of its inputs.
void check_node(const Graph& graph, const Node& node, const std::vector<bool>& defined) {
  check_operands(node, node.inputs, node.op->inputs, "input");
  check_operands(node, node.outputs, node.op->outputs, "output");
  check_attributes(node);
  for (const ValueId input : node.inputs) {
    if (input != kNone && !defined[size_t(input)]) {
      fail(node, fmt::format("input '{}' is used before it is computed", graph.values[size_t(input)].name));
    }
  }
}

void check_names(const Graph& graph, ErrorList& errors) {
  std::unordered_set<std::string_view> values, nodes;
  for (const Value& value : graph.values) {
    if (values.insert(value.name).second) continue;
    errors.attempt([&] { throw GraphError(value.where, fmt::format("value '{}' is defined twice", value.name)); });
  }
  for (const Node& node : graph.nodes) {
    if (nodes.insert(node.name).second) continue;
    errors.attempt([&] { fail(node, "another node has the same name"); });
  }
}

// Whether the type of something that the node's own type follows from is not known. Of what a choice is between, one
// counts.
bool reads_unknown(const Graph& graph, const Node& node, const std::vector<bool>& unknown) {
  const auto is_unknown = [&](ValueId input) { return input != kNone && unknown[size_t(input)]; };
  if (is_choice(node) && node.inputs.size() > kChoiceElse) {
    if (is_unknown(node.inputs[kChoiceCondition])) return true;
    const size_t chosen = chosen_operand(graph, node);
    return chosen != 0 && is_unknown(node.inputs[chosen]);
  }
  return std::any_of(node.inputs.begin(), node.inputs.end(), is_unknown);
}

// Checks the nodes and infers their types.
void infer_all(Graph& graph, ErrorList& errors) {
  double work = 0;  // of what is computed of constants
  std::vector<bool> defined(graph.values.size(), false), unknown(graph.values.size(), false);  // unknown: types
  for (const ValueId input : graph.inputs) {
    unknown[size_t(input)] = !errors.attempt([&] { check_extents(graph.values[size_t(input)]); });
  }
  for (size_t v = 0; v < graph.values.size(); ++v) defined[v] = graph.values[v].producer == kNone;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const bool follows = reads_unknown(graph, node, unknown);
    // What follows from an error is not another one: types are inferred where those of all inputs are known.
    bool sound = errors.attempt([&] { check_node(graph, node, defined); }) && !follows;
    sound = sound && errors.attempt([&] {
      work += infer_node(graph, NodeId(n));
      for (const ValueId output : node.outputs) {
        if (output != kNone) check_declared(graph.values[size_t(output)]);
      }
    });
    if (work > kMostContentWork) {
      fail(node,
           "what follows from constants alone up to here is too much to compute when a graph is read; expected "
           "smaller constants, or fewer nodes that read nothing else");
    }
    for (const ValueId output : node.outputs) {
      if (output == kNone) continue;
      defined[size_t(output)] = true;
      unknown[size_t(output)] = !sound;
    }
  }
}

}  // namespace

std::string_view name_of(Stage stage) {
  static constexpr std::array<std::string_view, 3> names = {"forward", "backward", "update"};
  return names[size_t(stage)];
}

void erase_nodes(Graph& graph, const std::vector<bool>& erased) {
  std::vector<Node> kept;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output != kNone) graph.values[size_t(output)].producer = erased[n] ? kNone : NodeId(kept.size());
    }
    if (!erased[n]) kept.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(kept);
}

void infer(Graph& graph, NodeId id) {
  infer_node(graph, id);
}

void verify(Graph& graph) {
  ErrorList errors;
  check_names(graph, errors);
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(), is_choice)) {
    ErrorList ignored;  // what is not chosen may be wrong, as a Squeeze of another extent than 1
    infer_all(graph, ignored);
    leave_out_unchosen(graph);
  }
  infer_all(graph, errors);
  errors.throw_if_any();
}

}  // namespace arbalest
