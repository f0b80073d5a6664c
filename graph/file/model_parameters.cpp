// SPDX-License-Identifier: Apache-2.0
#include "graph/file/model_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "graph/constants.h"
#include "graph/names.h"
#include "graph/op.h"

namespace arbalest {
namespace {

constexpr const char* kMode = "training_mode";  // the attribute of operators that compute otherwise in training

bool is_stored(const Value& value) {
  return (value.role == Role::Parameter || value.role == Role::Constant) &&
         value.initializer.kind == Initializer::Kind::Data;
}

OperandSpec::Part part_of(const Node& node, size_t input) {
  const OperandSpec* spec = node.op->input_spec(input);
  return spec ? spec->part : OperandSpec::Any;
}

bool is_statistics(const Node& node, size_t input) {
  const OperandSpec::Part part = part_of(node, input);
  return part == OperandSpec::Mean || part == OperandSpec::Variance;
}

// Whether the operator learns what stands there, or carries it on.
bool is_weight(const Node& node, size_t input) {
  const OperandSpec::Part part = part_of(node, input);
  return part >= OperandSpec::Weight && part <= OperandSpec::OwnWeight;
}

ValueId copy_of(Graph& graph, ValueId id, const std::string& name) {
  const Value from = graph.values[id];
  const ValueId copy = graph.add_value(name, from.type, from.role);
  graph.values[copy].initializer = from.initializer;
  graph.values[copy].where = from.where;
  return copy;
}

bool is_norm(const Node& node) {
  const std::vector<OperandSpec>& inputs = node.op->inputs;
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const OperandSpec& spec) { return spec.part == OperandSpec::Scale; });
}

// Whether PyTorch's exporters have made up the name.
bool is_made_up(const std::string& name) {
  return name.find('/') != name.npos || name.starts_with("onnx::") || name.starts_with("val_") ||
         name.find_first_not_of("0123456789") == name.npos;  // "1.weight" is a parameter of a Sequential
}

// Ones and zeros that PyTorch's exporters give to a norm whose module has no scale and bias, or applies them itself,
// under names of their own: "/norm/Constant_1_output_0", "val_26".
bool is_neutral(const GraphSource& source, const Value& value) {
  if (source.producer != "pytorch" || !is_made_up(value.name) || value.type.dtype != DataType::Float32) return false;
  const auto* numbers = reinterpret_cast<const float*>(value.initializer.data->data());
  return std::all_of(numbers, numbers + value.type.elements(),
                     [&](float each) { return each == numbers[0] && (each == 0 || each == 1); });
}

// PyTorch's exporters write weights as initialisers, unless a frozen script was exported: then there are none.
bool constants_are_no_weights(const GraphSource& source) {
  return source.equal_is_same && std::any_of(source.values.begin(), source.values.end(), [&](const SourceValue& value) {
           return value.data && is_of_module(source, value.name.text);
         });
}

// The first element that is not finite; none if all are.
std::optional<int64_t> first_not_finite(const Value& value) {
  if (value.type.dtype != DataType::Float32) return std::nullopt;
  const auto* numbers = reinterpret_cast<const float*>(value.initializer.data->data());
  const auto* end = numbers + value.type.elements();
  const auto* found = std::find_if(numbers, end, [](float each) { return !std::isfinite(each); });
  return found == end ? std::nullopt : std::optional<int64_t>(found - numbers);
}

// A weight that no training can mend: the file is damaged. Masks may well be infinite.
void check_finite(const Value& weight) {
  const std::optional<int64_t> found = first_not_finite(weight);
  if (!found) return;
  const float number = reinterpret_cast<const float*>(weight.initializer.data->data())[*found];
  throw GraphError(weight.where, fmt::format("weight '{}', element {}: found {}, expected a finite number", weight.name,
                                             *found, number));
}

// Whether the numbers are 0 and one that no score reaches, as of masks that are added before a softmax.
bool is_mask(const Value& value) {
  constexpr float kNever = -1e4f;  // of the least that exporters write
  if (value.type.dtype != DataType::Float32 || value.type.elements() < 2) return false;
  const auto* numbers = reinterpret_cast<const float*>(value.initializer.data->data());
  const auto* end = numbers + value.type.elements();
  const float least = *std::min_element(numbers, end);
  return least <= kNever && std::find(numbers, end, 0.0f) != end &&
         std::all_of(numbers, end, [&](float each) { return each == 0 || each == least; });
}

using Kept = SourceValue::Kept;

std::unordered_map<ValueId, Kept> kept_values(const Graph& graph, const GraphSource& source) {
  std::unordered_map<ValueId, Kept> kept;
  for (const SourceValue& value : source.values) {
    const bool otherwise = value.kept == Kept::Buffer || value.kept == Kept::Constant;
    if (otherwise) kept.emplace(graph.find_value(value.name.text), value.kept);
  }
  return kept;
}

std::unordered_set<ValueId> stated_parameters(const Graph& graph, const GraphSource& source) {
  std::unordered_set<ValueId> stated;
  for (const SourceValue& value : source.values) {
    if (value.kept == Kept::Parameter) stated.insert(graph.find_value(value.name.text));
  }
  return stated;
}

// Statistics of batch norms are a state, and train as such.
void leave_out_statistics(const Graph& graph, std::unordered_map<ValueId, Kept>& kept) {
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (is_statistics(node, i)) kept.erase(node.inputs[i]);
    }
  }
}

void find_weights(Graph& graph, const GraphSource& source, const std::unordered_map<ValueId, Kept>& kept) {
  const bool only_initialisers = constants_are_no_weights(source);
  const std::unordered_set<ValueId> parameters = stated_parameters(graph, source);
  Table<ValueId, bool> learned(graph.values.size(), false), neutral(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (id == kNone || !is_weight(node, i) || !is_stored(graph.values[id]) || kept.contains(id)) continue;
      const Value& value = graph.values[id];
      neutral[id] = is_norm(node) && is_neutral(source, value);
      learned[id] = !(only_initialisers && value.role == Role::Constant);
    }
  }
  for (const ValueId v : learned.ids()) {
    Value& value = graph.values[v];
    if (!is_stored(value) || !is_floating(value.type.dtype)) continue;
    if (learned[v] && !value.type.shape.empty()) {
      value.role = neutral[v] ? Role::Constant : Role::Parameter;
      check_finite(value);
    }
    if (learned[v]) continue;
    if (parameters.contains(v)) check_finite(value);
    // A number of a formula, a table in a net of floats, and a mask: no file of weights holds what is not finite.
    const bool number = value.type.elements() == 1 && !is_of_module(source, value.name) && !parameters.contains(v);
    const bool exact = value.type.dtype == DataType::Float64;
    const auto stated = kept.find(v);
    const bool constant = stated != kept.end() && stated->second == Kept::Constant;
    if (number || exact || constant || first_not_finite(value) || is_mask(value)) {
      value.role = Role::Constant;
    } else if (stated != kept.end()) {
      value.role = Role::Frozen;
    }
  }
}

bool is_uniform(const Value& value) {
  const std::vector<std::byte>& bytes = *value.initializer.data;
  const size_t size = size_of(value.type.dtype);
  return bytes.size() > size && std::equal(bytes.begin() + int64_t(size), bytes.end(), bytes.begin());
}

// The role of the node's operand `input`, for names of parameters: "weight", "scale".
std::string label_of(const Node& node, size_t input) {
  switch (part_of(node, input)) {
    case OperandSpec::Weight:
    case OperandSpec::Scale: return "weight";
    case OperandSpec::Bias: return "bias";
    case OperandSpec::Mean: return "running_mean";
    case OperandSpec::Variance: return "running_var";
    default: break;
  }
  const Arithmetic arithmetic = node.op->inputs.size() == 2 ? node.op->arithmetic : Arithmetic::Other;
  if (arithmetic == Arithmetic::Scales || arithmetic == Arithmetic::Divides) return "scale";
  if (arithmetic == Arithmetic::Adds) return "bias";
  const OperandSpec* spec = node.op->input_spec(input);
  return spec ? spec->name : "operand";
}

// "conv1.bias" if the node's other weight is "conv1.weight"; otherwise the node's name and the label: "bn1/mul.scale".
std::string name_of_own(const Graph& graph, const Node& node, size_t input) {
  constexpr std::string_view kWeight = ".weight";
  if (input >= 2 && is_weight(node, input) && node.inputs[1] != kNone) {
    const std::string& weight = graph.values[node.inputs[1]].name;
    if (weight.ends_with(kWeight)) {
      return weight.substr(0, weight.size() - kWeight.size() + 1) + label_of(node, input);
    }
  }
  return node.name + "." + label_of(node, input);
}

size_t common_start(const std::string& a, const std::string& b) {
  return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Zeros or ones that several nodes read are equal by chance: initial biases, scales and statistics, which exporters
// store once. Each node gets its own; the original stays with the node whose name is most like its.
void part_shared(Graph& graph) {
  const auto shared = [&](ValueId id) {
    return id != kNone && graph.values[id].role == Role::Parameter && is_uniform(graph.values[id]);
  };
  std::unordered_map<ValueId, NodeId> owners;
  for (const NodeId n : graph.nodes.ids()) {
    for (const ValueId id : graph.nodes[n].inputs) {
      if (!shared(id)) continue;
      const std::string& name = graph.values[id].name;
      const auto [owner, added] = owners.emplace(id, n);
      if (common_start(graph.nodes[n].name, name) > common_start(graph.nodes[owner->second].name, name)) {
        owner->second = n;
      }
    }
  }
  std::unordered_set<ValueId> taken;
  for (const NodeId n : graph.nodes.ids()) {
    for (size_t i = 0; i < graph.nodes[n].inputs.size(); ++i) {
      const ValueId id = graph.nodes[n].inputs[i];
      if (!shared(id) || (owners.at(id) == n && taken.insert(id).second)) continue;
      const std::string name = name_of_own(graph, graph.nodes[n], i);
      graph.nodes[n].inputs[i] = copy_of(graph, id, name);
    }
  }
}

// "const_fold_opt__4859": a number that tf2onnx has counted up, which is another one in the next file.
bool is_counted(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  return digits < name.size() && name.find('/') == name.npos &&
         std::string_view(name).substr(0, digits).ends_with("__");
}

// Renames parameters that tf2onnx has folded and numbered after the node that reads them, whose name identifies the
// layer.
void name_counted(Graph& graph) {
  std::unordered_set<std::string> taken;
  for (const Value& value : graph.values) taken.insert(value.name);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i] == kNone) continue;
      Value& value = graph.values[node.inputs[i]];
      if (value.role != Role::Parameter || !is_counted(value.name)) continue;
      std::string name = name_of_own(graph, node, i);
      while (!taken.insert(name).second) name += '_';
      value.name = std::move(name);
    }
  }
}

// An Identity of an initialiser becomes one as well. Buffers and constants keep their names if nothing else reads them:
// PyTorch calls parameters by their own where it stores equal ones once, and copies of these after the call.
void copy_identities(Graph& graph, std::unordered_map<ValueId, Kept>& kept) {
  const Table<ValueId, std::vector<NodeId>> readers = graph.consumers();
  const std::unordered_set<ValueId> asked(graph.outputs.begin(), graph.outputs.end());
  Table<NodeId, bool> gone(graph.nodes.size(), false);
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    if (!node.is(op::Identity) || node.inputs.size() != 1 || node.inputs[0] == kNone) continue;
    if (node.outputs.size() != 1) continue;  // verify() refuses it
    const Value& from = graph.values[node.inputs[0]];
    if (!is_stored(from)) continue;
    Value& copy = graph.values[node.outputs[0]];
    copy.type = from.type;
    copy.role = from.role;
    copy.initializer = from.initializer;
    copy.declared.reset();
    copy.producer = kNone;
    gone[n] = true;
    const auto stated = kept.find(node.inputs[0]);
    if (stated == kept.end()) continue;
    const Kept how = stated->second;
    kept.emplace(node.outputs[0], how);
    if (readers[node.inputs[0]].size() > 1 || asked.contains(node.inputs[0]) || asked.contains(node.outputs[0]))
      continue;
    std::string name = from.name;
    graph.rename(node.inputs[0], copy.name);
    graph.rename(node.outputs[0], std::move(name));
  }
  erase_nodes(graph, gone);
}

// Removes casts of weights to half precision (torch.autocast), which change nothing here because half precision is read
// as float. Operators then read the weights directly, so that these count as weights.
void read_uncast(Graph& graph) {
  const std::unordered_set<ValueId> asked(graph.outputs.begin(), graph.outputs.end());
  std::unordered_map<ValueId, ValueId> same;
  Table<NodeId, bool> gone(graph.nodes.size(), false);
  for (const NodeId n : graph.nodes.ids()) {
    Node& node = graph.nodes[n];
    for (ValueId& input : node.inputs) {
      if (const auto found = same.find(input); found != same.end()) input = found->second;
    }
    if (!node.is(op::Cast) || node.inputs.size() != 1 || node.inputs[0] == kNone) continue;
    if (node.outputs.size() != 1 || asked.count(node.outputs[0])) continue;
    const Value& from = graph.values[node.inputs[0]];
    const NamedAttribute* to = node.attributes.find_named("to");
    if (!is_stored(from) || !to || to->value != Attribute(onnx_number(from.type.dtype))) continue;
    same.emplace(node.outputs[0], node.inputs[0]);
    gone[n] = true;
  }
  erase_nodes(graph, gone);
}

// Zeros that an exporter writes for the state before a recurrent layer's first step, one for each sample of a batch. A
// state that is learned is one for all samples.
void leave_out_zero_states(Graph& graph) {
  const auto is_zeros = [&](ValueId id, size_t samples) {
    const Value& value = graph.values[id];
    if (!is_stored(value) || value.type.dtype != DataType::Float32 || value.type.shape.size() != 3) return false;
    if (value.type.shape[samples] == 1 && !is_made_up(value.name)) return false;
    const auto* numbers = reinterpret_cast<const float*>(value.initializer.data->data());
    return std::all_of(numbers, numbers + value.type.elements(), [](float each) { return each == 0; });
  };
  for (Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (part_of(node, i) != OperandSpec::InitialState || node.inputs[i] == kNone) continue;
      const bool samples_first = node.op->attribute_spec("layout") && int_attribute(node, "layout") == 1;
      if (is_zeros(node.inputs[i], samples_first ? 0 : 1)) node.inputs[i] = kNone;
    }
  }
}

// From operands that have to be known back to the initialisers that they are computed of. What a shape is asked of need
// not be known (Op::content).
void keep_constants(Graph& graph) {
  std::vector<ValueId> open;
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      // Weights of classes are no weights of the model: PyTorch has no gradient for them.
      if (part_of(node, i) == OperandSpec::ClassWeight && node.inputs[i] != kNone) {
        Value& weights = graph.values[node.inputs[i]];
        if (weights.role == Role::Parameter) weights.role = Role::Constant;
      }
      const OperandSpec* spec = node.op->input_spec(i);
      if (spec && spec->constant && node.inputs[i] != kNone) open.push_back(node.inputs[i]);
    }
  }
  std::unordered_set<ValueId> seen;
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (!seen.insert(id).second) continue;
    Value& value = graph.values[id];
    if (value.role == Role::Parameter || value.role == Role::Frozen) value.role = Role::Constant;
    if (value.producer == kNone || graph.nodes[value.producer].op->content) continue;
    for (const ValueId input : graph.nodes[value.producer].inputs) {
      if (input != kNone) open.push_back(input);
    }
  }
}

void number_producers(Graph& graph) {
  for (const NodeId n : graph.nodes.ids()) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output != kNone) graph.values[output].producer = n;
    }
  }
}

bool is_matrix(const Value& value) {
  return value.role == Role::Parameter && is_stored(value) && value.type.dtype == DataType::Float32 &&
         value.type.shape.size() == 2 && value.type.layout == Layout::RowMajor;
}

// Whether `b` is `a` transposed, and a's own numbers are not symmetric: an identity says nothing of where it is from.
bool is_transposed(const Value& a, const Value& b) {
  const int64_t rows = a.type.shape[0], columns = a.type.shape[1];
  if (b.type.shape != Shape{columns, rows}) return false;
  const auto* own = reinterpret_cast<const float*>(a.initializer.data->data());
  const auto* other = reinterpret_cast<const float*>(b.initializer.data->data());
  bool symmetric = rows == columns;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      if (own[i * columns + j] != other[j * rows + i]) return false;
      symmetric = symmetric && own[i * columns + j] == own[j * columns + i];
    }
  }
  return !symmetric && !is_uniform(a);
}

// Tables whose rows are looked up, by their shape.
std::multimap<Shape, ValueId> embeddings_of(const Graph& graph) {
  std::multimap<Shape, ValueId> tables;
  std::unordered_set<ValueId> seen;
  for (const Node& node : graph.nodes) {
    if (!node.op->attribute_spec("padding_index") || node.inputs.empty() || int_attribute(node, "axis") != 0) continue;
    const ValueId table = node.inputs[0];
    if (table != kNone && is_matrix(graph.values[table]) && seen.insert(table).second) {
      tables.emplace(graph.values[table].type.shape, table);
    }
  }
  return tables;
}

// PyTorch's exporters fold the transposition of a weight, under a name that is no parameter's. If the weight is an
// embedding as well, as in language models, the file has both: they are one parameter.
void tie_transposed(Graph& graph, const GraphSource& source) {
  const std::multimap<Shape, ValueId> embeddings = embeddings_of(graph);
  const std::unordered_set<ValueId> parameters = stated_parameters(graph, source);
  Table<NodeId, Node> transpositions;
  for (const ValueId v : graph.values.ids()) {
    Value& copy = graph.values[v];
    const bool named = copy.name.find('.') != copy.name.npos && !is_made_up(copy.name);
    if (!is_matrix(copy) || named || parameters.contains(v)) continue;
    const Shape& shape = copy.type.shape;
    const auto [first, last] = embeddings.equal_range({shape[1], shape[0]});
    const auto original = std::find_if(first, last, [&](const auto& each) {
      return each.second != v && is_transposed(graph.values[each.second], copy);
    });
    if (original == last) continue;
    Node node;
    node.op = &graph.op(op::Transpose);
    node.name = copy.name + ".tied";
    node.where = copy.where;
    node.inputs = {original->second};
    node.outputs = {v};
    transpositions.push_back(std::move(node));
    copy.role = Role::Activation;
    copy.initializer = {};
  }
  if (transpositions.empty()) return;
  for (const NodeId n : graph.nodes.ids()) transpositions.push_back(std::move(graph.nodes[n]));
  graph.nodes = std::move(transpositions);
  number_producers(graph);
}

// Statistics are a state here: nothing may read what a batch norm made of them.
void keep_first_output(const Graph& graph, Node& node, const std::unordered_set<ValueId>& read) {
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    if (!read.count(node.outputs[i])) continue;
    fail(node, fmt::format("its output '{}' is read; expected readers of its first output alone",
                           graph.values[node.outputs[i]].name));
  }
  node.outputs.resize(1);
}

std::unordered_set<ValueId> values_read(const Graph& graph) {
  std::unordered_set<ValueId> read(graph.outputs.begin(), graph.outputs.end());
  for (const Node& node : graph.nodes) read.insert(node.inputs.begin(), node.inputs.end());
  read.erase(kNone);
  return read;
}

bool is_before(const Graph& graph, int64_t opset) {
  return std::any_of(graph.opsets.begin(), graph.opsets.end(), [&](const auto& import) {
    return (import.first.empty() || import.first == "ai.onnx") && import.second < opset;
  });
}

// Appends a node at the place of another.
ValueId append(Graph& graph, const Node& at, const Op& op, std::string_view label, std::vector<ValueId> inputs,
               Attributes attributes = {}) {
  const NodeId id =
      graph.add_node(op, fmt::format("{}.{}", at.name, label), std::move(inputs), 1, std::move(attributes));
  graph.nodes[id].where = at.where;
  return graph.nodes[id].outputs[0];
}

}  // namespace

void note_producer(GraphSource& source, const std::string& producer) {
  source.producer = producer;
  source.equal_is_same =
      producer == "pytorch" && std::any_of(source.nodes.begin(), source.nodes.end(), [](const SourceNode& node) {
        return node.op.text == "Constant" || node.label.text.starts_with('/');
      });
  source.names_weights =
      producer == "pytorch" && std::any_of(source.nodes.begin(), source.nodes.end(),
                                           [](const SourceNode& node) { return node.label.text.starts_with('/'); });
}

bool is_of_module(const GraphSource& source, const std::string& name) {
  return source.producer == "pytorch" && (name.find('.') != name.npos || (source.names_weights && !is_made_up(name)));
}

void own_parameters(Graph& graph, const GraphSource& source) {
  std::unordered_map<ValueId, Kept> kept = kept_values(graph, source);
  copy_identities(graph, kept);
  leave_out_statistics(graph, kept);
  read_uncast(graph);
  leave_out_zero_states(graph);
  find_weights(graph, source, kept);
  keep_constants(graph);
  if (source.producer == "pytorch") tie_transposed(graph, source);
  if (!source.equal_is_same) part_shared(graph);
  name_counted(graph);
}

void follow_training(Graph& graph, const GraphSource& source, bool training) {
  const std::unordered_set<ValueId> read = values_read(graph);
  std::unordered_set<ValueId> statistics;
  for (const NodeId n : graph.nodes.ids()) {
    Node& node = graph.nodes[n];
    const AttributeSpec* mode = node.op->domain.empty() ? node.op->attribute_spec(kMode) : nullptr;
    if (!mode) continue;
    std::vector<size_t> own;  // inputs
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (is_statistics(node, i)) own.push_back(i);
    }
    const bool norm = is_norm(node);
    if (norm && (own.size() < 2 || !std::all_of(own.begin(), own.end(), [&](size_t i) {
                   return node.inputs[i] != kNone && graph.values[node.inputs[i]].role == Role::Parameter;
                 }))) {
      continue;
    }
    if (const auto stated = constant_operand(node, kMode)) {
      node.inputs[*stated] = kNone;  // the operand would count
      while (!node.inputs.empty() && node.inputs.back() == kNone) node.inputs.pop_back();
    }
    if (training && mode->fallback == Attribute(int64_t{1})) continue;  // without the attribute it trains already
    node.attributes.set(kMode, int64_t{training}, node.where);
    if (!norm) continue;
    keep_first_output(graph, node, read);
    if (!training) continue;
    if (source.producer == "pytorch") node.attributes.set("correction", int64_t{1}, node.where);
    for (const size_t i : own) {
      const ValueId shared = graph.nodes[n].inputs[i];
      if (statistics.insert(shared).second) continue;
      graph.nodes[n].inputs[i] = copy_of(graph, shared, graph.values[shared].name);
    }
  }
}

void spell_out_old_softmax(Graph& graph) {
  if (!is_before(graph, 13)) return;
  const Table<NodeId, Node> nodes = std::move(graph.nodes);
  graph.nodes.clear();
  for (const Node& node : nodes) {
    const bool old = node.op->took_axes_as_one && node.inputs.size() == 1 && node.inputs[0] != kNone;
    const NamedAttribute* axis = node.attributes.find_named("axis");
    const bool is_last = axis && axis->value == Attribute(int64_t{-1});
    if (!old || is_last) {
      graph.nodes.push_back(node);
      continue;
    }
    const ValueId x = node.inputs[0];
    Attributes flat;
    flat.set("axis", axis ? axis->value : Attribute(int64_t{1}), node.where);
    const ValueId rows = append(graph, node, graph.op(op::Flatten), "rows", {x}, flat);
    const ValueId y = append(graph, node, *node.op, "of_rows", {rows}, {{"axis", int64_t{-1}}});
    const ValueId shape = append(graph, node, graph.op(op::Shape), "shape", {x});
    graph.nodes.push_back(node);
    Node& reshape = graph.nodes.back();
    reshape.op = &graph.op(op::Reshape);
    reshape.inputs = {y, shape};
    reshape.attributes = {};
  }
  number_producers(graph);
}

}  // namespace arbalest
