// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/setting.h"
#include "graph/file/graph_builder.h"
#include "graph/file/model_call.h"
#include "graph/names.h"

namespace arbalest {
namespace {

const std::vector<std::string> kCallAttributes = {"file", "inputs", "outputs", "training_mode"};

}  // namespace

bool GraphBuilder::calls_model(const SourceNode& node) {
  return node.domain == kModelDomain;
}

// Puts the part of the model's graph that computes the call's results in the call's place. Parameters keep their names
// unless the graph has the name already, or a layer of it would; other values are named as those of a function's
// instance are.
void GraphBuilder::call_model(const SourceNode& node, Scope& scope) {
  ModelCall call;
  call.name = node.op.text;
  std::string file;
  for (const SourceAttribute& attribute : node.attributes) {
    const std::string& name = attribute.name.text;
    if (std::find(kCallAttributes.begin(), kCallAttributes.end(), name) == kCallAttributes.end() || attribute.tensor) {
      fail(attribute.name.place, fmt::format("attribute '{}' of a model's call, expected one of {}{}", name,
                                             fmt::join(kCallAttributes, ", "), did_you_mean(name, kCallAttributes)));
    }
    const auto value = [&](AttributeKind kind) {
      return converted(resolve_fixed(attribute, scope), kind, attribute.name.place,
                       fmt::format("attribute '{}'", name));
    };
    if (name == "file") file = std::get<std::string>(value(AttributeKind::String));
    if (name == "inputs") call.inputs = std::get<std::vector<std::string>>(value(AttributeKind::Strings));
    if (name == "outputs") call.outputs = std::get<std::vector<std::string>>(value(AttributeKind::Strings));
    if (name == "training_mode") call.training = flag_of(attribute, std::get<int64_t>(value(AttributeKind::Int)));
  }
  for (const std::string& name : kCallAttributes) graph_.calls[note_call(node, scope, name)].fixed = true;
  const GraphSource& source = model_source(node, file);
  const CalledModel model = read_model(source, registry_, call, node.inputs.size(), node.outputs.size());
  place_model(node, model, scope);
}

bool GraphBuilder::flag_of(const SourceAttribute& attribute, int64_t value) const {
  if (value != 0 && value != 1) {
    fail(attribute.name.place, fmt::format("attribute '{}' is {}, expected 0 or 1", attribute.name.text, value));
  }
  return value == 1;
}

// The source of a called model: the file that --model gives for the name, otherwise the call's attribute `file`. The
// attribute is relative to the folder of the graph's file.
const GraphSource& GraphBuilder::model_source(const SourceNode& node, const std::string& attribute) {
  const std::string& name = node.op.text;
  called_.insert(name);
  std::string path;
  if (!attribute.empty()) path = (std::filesystem::path(source_.file).parent_path() / attribute).string();
  for (const ModelFile& model : models_) {
    if (model.name.empty() || model.name == name) path = model.path;
  }
  if (path.empty()) {
    std::string given;
    for (const ModelFile& model : models_) {
      given += fmt::format("; {} is of another name", set_to(SettingKey::Model, model.name + "=" + model.path));
    }
    fail(node.op.place, fmt::format("model '{}' has no file; expected {} or the attribute 'file'{}", name,
                                    set_to(SettingKey::Model, fmt::format("{}=FILE", name)), given));
  }
  const auto known = sources_.find(path);
  return known == sources_.end() ? sources_.emplace(path, read_source(path)).first->second : known->second;
}

// Throws GraphError if a file is given for a model that the graph does not call.
void GraphBuilder::check_models_called() const {
  const std::string called = called_.empty() ? "no model" : fmt::format("'{}'", fmt::join(called_, "', '"));
  const std::vector<std::string> names(called_.begin(), called_.end());
  for (const ModelFile& model : models_) {
    if (model.name.empty() ? called_.size() == 1 : called_.count(model.name) > 0) continue;
    const std::string given = model.name.empty() ? model.path : model.name + "=" + model.path;
    throw GraphError(
        fmt::format("{}: the graph '{}' calls {}{}", set_to(SettingKey::Model, given), source_.name, called,
                    model.name.empty() && !called_.empty() ? ", expected " + set_to(SettingKey::Model, "NAME=FILE")
                                                           : did_you_mean(model.name, names)));
  }
}

void GraphBuilder::place_model(const SourceNode& call, const CalledModel& model, Scope& scope) {
  const Graph& graph = model.graph;
  const std::string prefix = scope.prefix + called(call).text + "/";
  Table<ValueId, ValueId> placed(graph.values.size(), kNone);
  for (size_t i = 0; i < model.operands.size(); ++i) {
    const SourceName& operand = call.inputs[i];
    if (operand.text.empty()) fail(call.op.place, fmt::format("operand {} of model '{}' is left out", i, call.op.text));
    const ValueId value = find(operand, scope, "input", &call);
    if (model.operands[i] == kNone) continue;
    const Value& declared = graph.values[model.operands[i]];
    placed[model.operands[i]] = is_floating(declared.type.dtype) ? value : state_operand(call, value, declared, prefix);
  }
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId output = graph.outputs[i];
    if (call.outputs[i].text.empty()) continue;
    if (placed[output] == kNone && graph.values[output].producer != kNone) {
      placed[output] = add_value(call.outputs[i], scope, Role::Activation, &call);
    } else {  // an operand, an initialiser, or a value that is asked for twice
      bind_result(call, i, place_value(graph, output, prefix, placed), scope);
    }
  }
  for (const Node& node : graph.nodes) {
    if (graph_.nodes.size() >= kMostNodes) fail(call.op.place, fmt::format("more than {} nodes", kMostNodes));
    Node copy = node;
    for (ValueId& input : copy.inputs) input = place_value(graph, input, prefix, placed);
    for (ValueId& output : copy.outputs) {
      output = place_value(graph, output, prefix, placed);
      if (output != kNone) graph_.values[output].producer = graph_.nodes.end_id();
    }
    copy.name = free_name(names_.nodes, prefix, node.name);
    graph_.nodes.push_back(std::move(copy));
  }
}

// Whole numbers and flags of a data set have the types of their fields, and those of a model the types that its file
// states.
ValueId GraphBuilder::state_operand(const SourceNode& call, ValueId operand, const Value& declared,
                                    const std::string& prefix) {
  Node stated;
  stated.op = &registry_.get(op::AsStated);
  stated.name = free_name(names_.nodes, prefix, declared.name);
  stated.where = position(call.op.place);
  stated.attributes.set("to", onnx_number(declared.type.dtype), stated.where);
  stated.inputs = {operand};
  Value result;
  result.name = free_name(names_.values, prefix, declared.name);
  result.producer = graph_.nodes.end_id();
  const ValueId value = graph_.add_value(std::move(result));
  stated.outputs = {value};
  graph_.nodes.push_back(std::move(stated));
  return value;
}

// Takes a name that nothing has yet: names of exporters often begin with a slash, which the prefix ends with.
std::string GraphBuilder::free_name(std::unordered_set<std::string>& taken, const std::string& prefix,
                                    const std::string& name) {
  std::string free = prefix + (name.starts_with('/') ? name.substr(1) : name);
  while (!taken.insert(free).second) free += '_';
  return free;
}

// Whether one of the graph's own layers may have a parameter of this name.
bool GraphBuilder::is_of_layer(const std::string& name) const {
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
    if (names_.owners.count(name.substr(0, dot))) return true;
  }
  return false;
}

// The value of this graph that stands for one of the model's.
ValueId GraphBuilder::place_value(const Graph& model, ValueId id, const std::string& prefix,
                                  Table<ValueId, ValueId>& placed) {
  if (id == kNone) return kNone;
  if (placed[id] != kNone) return placed[id];
  Value value = model.values[id];
  const bool stored = value.role == Role::Parameter || value.role == Role::Frozen;
  const bool keeps = stored && !names_.own.count(value.name) && !is_of_layer(value.name);
  if (!keeps || !names_.values.insert(value.name).second) {
    value.name = free_name(names_.values, prefix, value.name);
  }
  value.producer = kNone;
  return placed[id] = graph_.add_value(std::move(value));
}

}  // namespace arbalest
