// SPDX-License-Identifier: Apache-2.0

// Faults of graphs: of a file's when it is read, and of any when a pass is done with it.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <new>
#include <unordered_set>

#include "base/error.h"
#include "graph/constants.h"
#include "graph/op.h"
#include "graph/verify/check_sound.h"

namespace arbalest {
namespace {

// At the attribute, if that has a place of its own.
[[noreturn]] void fail_at(const NamedAttribute& given, Node node, const std::string& message) {
  if (given.where.line) node.where = given.where;
  fail(node, message);
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
  fail_at(given, node,
          fmt::format("attribute '{}' is \"{}\"; expected one of {}{}", given.name, *text,
                      fmt::join(spec.choices, ", "), did_you_mean(*text, spec.choices)));
}

void check_attributes(const Node& node) {
  std::vector<std::string> known;
  for (const AttributeSpec& spec : node.op->attributes) known.push_back(spec.name);
  for (const NamedAttribute& given : node.attributes) {
    const AttributeSpec* spec = node.op->attribute_spec(given.name);
    if (!spec) {
      fail_at(given, node,
              fmt::format("unknown attribute '{}', expected {}{}", given.name,
                          known.empty() ? "none" : fmt::format("one of {}", fmt::join(known, ", ")),
                          did_you_mean(given.name, known)));
    }
    if (!convert(given.value, spec->kind)) {
      fail_at(
          given, node,
          fmt::format("attribute '{}' is {}, expected {}", given.name, to_string(given.value), name_of(spec->kind)));
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

// As infer(); returns what infer_content() does.
double infer_node(Graph& graph, NodeId id) {
  InferContext context(graph, id);
  const Node& node = graph.nodes[id];
  for (size_t i = 0; i < node.inputs.size() && !node.op->prepare; ++i) {
    if (node.inputs[i] == kNone || context.input(i).dtype != DataType::String) continue;
    context.fail(
        fmt::format("input '{}' is {}, files as they are stored; expected a tensor, as RandomResizedCrop or ResizeCrop "
                    "make of them",
                    graph.values[node.inputs[i]].name, to_string(context.input(i))));
  }
  try {
    if (node.op->infer) node.op->infer(context);
    return infer_content(graph, id);
  } catch (const std::bad_alloc&) {
    fail(node, "not enough memory on the host for what is known before the graph runs");
  }
}

// Checks of a node that need no types.
void check_node(const Graph& graph, const Node& node, const Table<ValueId, bool>& defined) {
  check_operands(node, node.inputs, node.op->inputs, "input");
  check_operands(node, node.outputs, node.op->outputs, "output");
  check_attributes(node);
  for (const ValueId input : node.inputs) {
    if (input != kNone && !defined[input]) {
      fail(node, fmt::format("input '{}' is used before it is computed", graph.values[input].name));
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
bool reads_unknown(const Graph& graph, const Node& node, const Table<ValueId, bool>& unknown) {
  const auto is_unknown = [&](ValueId input) { return input != kNone && unknown[input]; };
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
  Table<ValueId, bool> defined(graph.values.size(), false), unknown(graph.values.size(), false);  // unknown: types
  for (const ValueId input : graph.inputs) {
    unknown[input] = !errors.attempt([&] { check_extents(graph.values[input]); });
  }
  for (const ValueId v : graph.values.ids()) defined[v] = graph.values[v].producer == kNone;
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    const bool follows = reads_unknown(graph, node, unknown);
    // A consequence of an error is not another one: types are inferred if those of all inputs are known.
    bool sound = errors.attempt([&] { check_node(graph, node, defined); }) && !follows;
    sound = sound && errors.attempt([&] {
      work += infer_node(graph, n);
      for (const ValueId output : node.outputs) {
        if (output != kNone) check_declared(graph.values[output]);
      }
    });
    if (work > kMostContentWork) {
      fail(node,
           "what follows from constants alone up to here is too much to compute when a graph is read; expected "
           "smaller constants, or fewer nodes that read nothing else");
    }
    for (const ValueId output : node.outputs) {
      if (output == kNone) continue;
      defined[output] = true;
      unknown[output] = !sound;
    }
  }
}

// Ids that are those of nodes and values, and values that the nodes say they make.
void check_ids(const Graph& graph) {
  const auto is_value = [&](ValueId id) { return id == kNone || (id >= 0 && size_t(id) < graph.values.size()); };
  for (const Node& node : graph.nodes) {
    const bool inside = std::all_of(node.inputs.begin(), node.inputs.end(), is_value) &&
                        std::all_of(node.outputs.begin(), node.outputs.end(), is_value);
    if (!inside) fail(node, "an operand is no value of the graph");
  }
  for (const std::vector<ValueId>* list : {&graph.inputs, &graph.outputs}) {
    if (std::find(list->begin(), list->end(), kNone) == list->end() &&
        std::all_of(list->begin(), list->end(), is_value)) {
      continue;
    }
    throw GraphError(fmt::format("an input or an output of graph '{}' is no value of it", graph.name));
  }
  for (const Value& value : graph.values) {
    const bool is_node =
        value.producer == kNone || (value.producer >= 0 && size_t(value.producer) < graph.nodes.size());
    if (is_node && is_value(value.view.base)) continue;
    throw GraphError(value.where, fmt::format("the {} of value '{}' is not in the graph", is_node ? "base" : "producer",
                                              value.name));
  }
  for (const Carry& carry : graph.carries) {
    if (carry.current != kNone && carry.next != kNone && is_value(carry.current) && is_value(carry.next)) continue;
    throw GraphError(fmt::format("a carry of graph '{}' is of no value of it", graph.name));
  }
}

void check_producers(const Graph& graph) {
  Table<ValueId, NodeId> makers(graph.values.size(), kNone);
  for (const NodeId n : graph.nodes.ids()) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output == kNone) continue;
      if (makers[output] != kNone) {
        fail(graph.nodes[n], fmt::format("makes '{}', which node '{}' makes too", graph.values[output].name,
                                         graph.nodes[makers[output]].name));
      }
      makers[output] = n;
    }
  }
  for (const ValueId v : makers.ids()) {
    const Value& value = graph.values[v];
    if (makers[v] == value.producer) continue;
    const auto name = [&](NodeId node) { return node == kNone ? "none" : graph.nodes[node].name; };
    throw GraphError(value.where, fmt::format("value '{}' has the producer '{}'; the node that makes it is '{}'",
                                              value.name, name(value.producer), name(makers[v])));
  }
}

// An activation that is read has been made, by a node or as a part of another value.
void check_inputs(const Graph& graph, const Node& node) {
  for (const ValueId input : node.inputs) {
    if (input == kNone) continue;
    const Value& value = graph.values[input];
    if (value.role != Role::Activation || value.producer != kNone || value.view.base != kNone) continue;
    fail(node, fmt::format("input '{}' is made by no node", value.name));
  }
}

// The outputs' types are those that the operator infers. A precision that was lowered stays so: most operators follow
// their inputs', and those that do not say by OperandSpec::lowered that they may.
void check_types(const Graph& graph, Graph& inferred, NodeId id) {
  const Node& node = graph.nodes[id];
  if (node.op->infer) {
    InferContext context(inferred, id);
    node.op->infer(context);
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNone) continue;
    const TensorType& found = graph.values[node.outputs[i]].type;
    TensorType& expected = inferred.values[node.outputs[i]].type;
    const bool lowered =
        found.dtype == DataType::Bfloat16 && expected.dtype == DataType::Float32 && node.op->output_spec(i)->lowered;
    if (lowered) expected.dtype = found.dtype;
    if (found == expected) continue;
    fail(node, fmt::format("output '{}' is {}, {}; the operator infers {}, {}", graph.values[node.outputs[i]].name,
                           to_string(found), name_of(found.layout), to_string(expected), name_of(expected.layout)));
  }
}

// An output that lies in an input's memory needs no more than there is.
void check_aliases(const Graph& graph, const Node& node) {
  for (const auto& [output, input] : node.op->aliases) {
    if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
    const ValueId to = node.outputs[size_t(output)], from = node.inputs[size_t(input)];
    if (to == kNone || from == kNone) continue;
    const Value &made = graph.values[to], &home = graph.values[from];
    if (made.type.bytes() <= home.type.bytes()) continue;
    fail(node, fmt::format("output '{}' ({}) takes the memory of '{}' ({}), which is less", made.name,
                           to_string(made.type), home.name, to_string(home.type)));
  }
}

// Views lie within what they are parts of, and apart from each other.
void check_views(const Graph& graph) {
  std::map<ValueId, std::map<int64_t, ValueId>> parts;  // by base, then by the first byte
  for (const ValueId v : graph.values.ids()) {
    const Value& value = graph.values[v];
    if (value.view.base == kNone) continue;
    const Value& base = graph.values[value.view.base];
    const int64_t begin = value.view.offset_bytes, end = begin + value.type.bytes();
    if (base.view.base != kNone) {
      throw GraphError(value.where,
                       fmt::format("value '{}' is a part of '{}', which is a part itself", value.name, base.name));
    }
    if (begin < 0 || end > base.type.bytes()) {
      throw GraphError(value.where, fmt::format("value '{}' takes bytes {} to {} of '{}', which has {}", value.name,
                                                begin, end, base.name, base.type.bytes()));
    }
    if (value.type.bytes() > 0 && !parts[value.view.base].emplace(begin, v).second) {
      throw GraphError(value.where,
                       fmt::format("value '{}' has the same place in '{}' as another", value.name, base.name));
    }
  }
  for (const auto& [base, members] : parts) {
    int64_t end = 0;
    for (const auto& [begin, member] : members) {
      const Value& value = graph.values[member];
      if (begin < end) {
        throw GraphError(value.where, fmt::format("value '{}' begins at byte {} of '{}', within the part before it",
                                                  value.name, begin, graph.values[base].name));
      }
      end = begin + value.type.bytes();
    }
  }
}

void check_carries(const Graph& graph) {
  for (const Carry& carry : graph.carries) {
    const Value &current = graph.values[carry.current], &next = graph.values[carry.next];
    if (current.type == next.type && current.role != Role::Activation) continue;
    throw GraphError(next.where,
                     fmt::format("'{}' ({}) is what the next iteration reads as '{}' ({}); expected a stored value of "
                                 "the same type",
                                 next.name, to_string(next.type), current.name, to_string(current.type)));
  }
}

}  // namespace

void infer(Graph& graph, NodeId id) {
  infer_node(graph, id);
}

void check_sound(const Graph& graph) {
  check_ids(graph);
  ErrorList errors;
  check_names(graph, errors);
  errors.attempt([&] { check_producers(graph); });
  errors.attempt([&] { check_views(graph); });
  errors.attempt([&] { check_carries(graph); });
  Graph inferred = graph;
  Table<ValueId, bool> defined(graph.values.size());
  for (const ValueId v : defined.ids()) defined[v] = graph.values[v].producer == kNone;
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    errors.attempt([&] {
      check_node(graph, node, defined);
      check_inputs(graph, node);
      check_types(graph, inferred, n);
      check_aliases(graph, node);
    });
    for (const ValueId output : node.outputs) {
      if (output != kNone) defined[output] = true;
    }
  }
  errors.throw_if_any();
}

void verify(Graph& graph) {
  ErrorList errors;
  graph.calls.clear();
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
