// SPDX-License-Identifier: Apache-2.0
#include "graph/file/graph_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/constants.h"
#include "graph/file/onnx_operators.h"
#include "graph/op.h"

namespace arbalest {
namespace {

constexpr int64_t kOldestOpset = 7;
// ONNX 1.23's. What an opset adds to an operator that is known here is an attribute or operand, which verify() refuses.
constexpr int64_t kNewestOpset = 28;
constexpr size_t kLongestPath = 4096;
constexpr size_t kMostCandidates = 4096;  // that a name is compared with for a suggestion

}  // namespace

Graph GraphBuilder::build() {
  graph_.registry = &registry_;
  graph_.name = source_.name;
  graph_.opsets = source_.opsets;
  check_opsets();
  index_functions();
  find_batch_symbol();
  find_own_names();
  Scope scope;
  for (const SourceValue& input : source_.inputs) {
    input.data ? add_initializer(input, scope) : add_input(input, scope);
  }
  for (const SourceValue& value : source_.values) {
    if (value.data) add_initializer(value, scope);
  }
  ErrorList errors;
  for (const SourceNode& node : source_.nodes) add_or_note(node, scope, errors);
  const auto declare_sound = [&](const SourceValue& value) {
    ValueId id = kNone;
    if (!unsound_.count(value.name.text)) errors.attempt([&] { id = declare(value, scope); });
    return id;
  };
  for (const SourceValue& value : source_.values) {
    if (!value.data) declare_sound(value);
  }
  for (const SourceValue& output : source_.outputs) graph_.outputs.push_back(declare_sound(output));
  errors.throw_if_any();
  check_models_called();
  return std::move(graph_);
}

std::vector<std::string> GraphBuilder::files() const {
  std::vector<std::string> files;
  const auto add = [&](const GraphSource& source) {
    files.push_back(source.file);
    files.insert(files.end(), source.data_files.begin(), source.data_files.end());
  };
  add(source_);
  for (const auto& [path, source] : sources_) add(source);
  return files;
}

// Versions whose operators mean what this registry's do.
void GraphBuilder::check_opsets() const {
  for (const auto& [domain, version] : source_.opsets) {
    const bool onnx = domain.empty() || domain == "ai.onnx";
    if (onnx && (version < kOldestOpset || version > kNewestOpset)) {
      fail(source_.opsets_place,
           fmt::format("ONNX opset {} is not known, expected {} to {}", version, kOldestOpset, kNewestOpset));
    }
    if (domain == "arbalest" && version != 1) {
      fail(source_.opsets_place, fmt::format("opset \"arbalest\" : {} is not known, expected version 1", version));
    }
  }
}

void GraphBuilder::index_functions() {
  for (const SourceFunction& function : source_.functions) {
    const std::string name = function.qualified_name();
    if (!functions_.emplace(name, &function).second) {
      fail(function.name.place, fmt::format("function '{}' is defined twice", name));
    }
    check_attributes(function.attributes, name);
    check_unique(function.inputs, fmt::format("input of function '{}'", name));
    check_unique(function.outputs, fmt::format("output of function '{}'", name));
  }
}

void GraphBuilder::find_batch_symbol() {
  for (const SourceValue& input : source_.inputs) {
    for (const std::string& symbol : input.symbols) {
      if (batch_symbol_.empty()) batch_symbol_ = symbol;
    }
  }
}

void GraphBuilder::find_own_names() {
  for (const SourceValue& input : source_.inputs) names_.own.insert(input.name.text);
  for (const SourceValue& value : source_.values) names_.own.insert(value.name.text);
  for (const SourceNode& node : source_.nodes) {
    const std::string name = qualified_name(node);
    const Op* op = registry_.find(name);
    const bool owns = functions_.count(name) || (op && op->owns_values());
    for (const SourceName& output : node.outputs) {
      names_.own.insert(output.text);
      if (owns) names_.owners.insert(output.text);
    }
  }
}

TensorType GraphBuilder::bind(const SourceValue& value) const {
  TensorType type = *value.type;
  for (size_t i = 0; i < value.symbols.size() && batch_ > 0; ++i) {
    if (!batch_symbol_.empty() && value.symbols[i] == batch_symbol_) type.shape[i] = batch_;
  }
  return type;
}

// The beginning of a message about a value that the node reads or makes, if the file has no lines to point at.
std::string GraphBuilder::at(const SourcePlace& place, const SourceNode* node) {
  if (!node || place.line > 0) return "";
  return fmt::format("node '{}' ({}): ", called(*node).text, qualified_name(*node));
}

// A new value under its full name. `node`: which makes it; nullptr: it is an input or an initialiser.
ValueId GraphBuilder::add_value(const SourceName& name, Scope& scope, Role role, const SourceNode* node) {
  if (const auto found = scope.values.find(name.text); found != scope.values.end()) {
    const Position first = found->second == kNone ? Position{} : graph_.values[found->second].where;
    fail(name.place, at(name.place, node) + (first.line ? fmt::format("value '{}' is defined twice, first at line {}",
                                                                      name.text, first.line)
                                                        : fmt::format("value '{}' is defined twice", name.text)));
  }
  Value value;
  value.name = full_name(name.text, scope);
  value.role = role;
  value.where = position(name.place);
  check_path(value.name, name.place);
  if (!names_.values.insert(value.name).second) {
    fail(name.place, at(name.place, node) + fmt::format("value '{}' is defined twice", value.name));
  }
  const ValueId id = graph_.add_value(std::move(value));
  scope.values.emplace(name.text, id);
  return id;
}

void GraphBuilder::check_path(const std::string& path, const SourcePlace& place) const {
  if (path.size() > kLongestPath) fail(place, fmt::format("a name is longer than {} bytes", kLongestPath));
}

std::string GraphBuilder::full_name(const std::string& name, const Scope& scope) const {
  const auto result = scope.results.find(name);
  return result == scope.results.end() ? scope.prefix + name : result->second;
}

void GraphBuilder::add_input(const SourceValue& input, Scope& scope) {
  if (!input.type) fail(input.name.place, fmt::format("input '{}' needs a type and a shape", input.name.text));
  const ValueId id = add_value(input.name, scope, Role::Input);
  graph_.values[id].type = bind(input);
  graph_.inputs.push_back(id);
}

void GraphBuilder::add_initializer(const SourceValue& value, Scope& scope) {
  const Role role = is_floating(value.type->dtype) ? Role::Parameter : Role::Constant;
  add_data(value.name, scope, role, *value.type, {Initializer::Kind::Data, 0, value.data});
}

void GraphBuilder::add_data(const SourceName& name, Scope& scope, Role role, TensorType type, Initializer initializer,
                            const SourceNode* node) {
  Value& value = graph_.values[add_value(name, scope, role, node)];
  value.type = std::move(type);
  value.initializer = std::move(initializer);
}

// `node`: which reads the value; nullptr: the graph or a function lists it.
ValueId GraphBuilder::find(const SourceName& name, const Scope& scope, std::string_view what,
                           const SourceNode* node) const {
  if (const auto found = scope.values.find(name.text); found != scope.values.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [value, id] : scope.values) {
    if (known.size() < kMostCandidates) known.push_back(value);
  }
  std::sort(known.begin(), known.end());
  const bool typed = !node && std::any_of(source_.values.begin(), source_.values.end(),
                                          [&](const SourceValue& value) { return value.name.text == name.text; });
  fail(name.place, fmt::format("{}{} '{}' is not defined before this place{}", at(name.place, node), what, name.text,
                               typed ? "; its type alone makes no tensor: numbers next to it do, as in "
                                       "<float[2] scale = {1, 1}>, and layers own what is trained from random numbers, "
                                       "such as arbalest.Embedding a table"
                                     : did_you_mean(name.text, known)));
}

// An output, or the type of an intermediate value.
ValueId GraphBuilder::declare(const SourceValue& stated, const Scope& scope) {
  const ValueId id = find(stated.name, scope, "value");
  if (id == kNone || !stated.type) return id;
  Value& value = graph_.values[id];
  const TensorType type = bind(stated);
  if (value.producer != kNone) {
    value.declared = type;
  } else if (value.type != type) {
    fail(stated.name.place,
         fmt::format("'{}' is {}, declared as {}", stated.name.text, to_string(value.type), to_string(type)));
  }
  return id;
}

// Adds a node of the graph itself, or notes its errors, so that one run reports the errors of all nodes. If the node
// reads the result of a node with an error, only its operator's name is checked: other errors would follow from the
// first.
void GraphBuilder::add_or_note(const SourceNode& node, Scope& scope, ErrorList& errors) {
  const bool follows = std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](const SourceName& input) { return unsound_.count(input.text) > 0; });
  const bool sound = errors.attempt([&] { follows ? check_known(node) : add(node, scope); }) && !follows;
  if (sound) return;
  for (const SourceName& output : node.outputs) {
    if (!output.text.empty()) unsound_.insert(output.text);
  }
}

std::string GraphBuilder::qualified_name(const SourceNode& node) {
  const std::string domain = node.domain == "ai.onnx" ? "" : node.domain;
  return domain.empty() ? node.op.text : domain + "." + node.op.text;
}

void GraphBuilder::check_known(const SourceNode& node) const {
  const std::string name = qualified_name(node);
  const Op* op = registry_.find(name);
  if (functions_.count(name) == 0 && !is_constant_node(name) && !calls_model(node) && (!op || op->internal)) {
    unknown_op(node, name, op != nullptr);
  }
}

void GraphBuilder::add(const SourceNode& node, Scope& scope) {
  if (graph_.nodes.size() >= kMostNodes) fail(node.op.place, fmt::format("more than {} nodes", kMostNodes));
  const std::string domain = node.domain == "ai.onnx" ? "" : node.domain;
  const std::string name = qualified_name(node);
  const bool no_results = std::all_of(node.outputs.begin(), node.outputs.end(), [](auto& o) { return o.text.empty(); });
  if (no_results) fail(node.op.place, fmt::format("a node of '{}' needs at least one output", name));
  check_attributes(node.attributes, name);
  if (const auto function = functions_.find(name); function != functions_.end()) {
    return inline_function(node, *function->second, scope);
  }
  if (calls_model(node)) return call_model(node, scope);
  const Op* op = registry_.find(name);
  if (!op && name == "Constant") return add_constant(node, scope);
  if (!op && name == "ConstantOfShape") return add_constant_of_shape(node, scope);
  if (!op || op->internal) unknown_op(node, name, op != nullptr);
  check_imported(node, domain, scope);
  add_op(node, *op, scope);
}

void GraphBuilder::unknown_op(const SourceNode& node, const std::string& name, bool internal) const {
  std::vector<std::string> known;
  for (const SourceFunction& function : source_.functions) {
    if (known.size() < kMostCandidates) known.push_back(function.qualified_name());
  }
  for (const Op& op : registry_.all()) {
    if (!op.internal) known.push_back(op.qualified_name());
  }
  const std::string hint = did_you_mean(name, known);
  if (!internal && is_onnx_operator(name)) {
    fail(node.op.place,
         fmt::format("node '{}': the ONNX operator '{}' is not supported; 'arbalest ops' lists those that "
                     "are{}",
                     first_output(node).text, name, hint));
  }
  fail(node.op.place,
       fmt::format("node '{}': {} '{}'{}", first_output(node).text,
                   internal ? "graph files cannot use the internal operator" : "unknown operator or function", name,
                   hint));
}

void GraphBuilder::check_imported(const SourceNode& node, const std::string& domain, const Scope& scope) const {
  const auto imports = [&](const Opsets& opsets) {
    return std::any_of(opsets.begin(), opsets.end(), [&](const auto& opset) {
      return opset.first == domain || (domain.empty() && opset.first == "ai.onnx");
    });
  };
  if (source_.opsets.empty() || imports(source_.opsets)) return;
  if (scope.function && imports(scope.function->opsets)) return;
  fail(node.op.place, fmt::format("domain \"{}\" is not in opset_import", domain));
}

void GraphBuilder::add_op(const SourceNode& written, const Op& op, Scope& scope) {
  Node node;
  node.op = &op;
  node.attributes = resolve_attributes(written, scope);
  node.where = position(written.op.place);
  for (const SourceName& input : written.inputs) {
    node.inputs.push_back(input.text.empty() ? kNone : find(input, scope, "input", &written));
    // An initialiser that says how an operator works, such as the scales of Resize, is not trained.
    const OperandSpec* spec = op.input_spec(node.inputs.size() - 1);
    if (!spec || !spec->constant || node.inputs.back() == kNone) continue;
    Value& value = graph_.values[node.inputs.back()];
    if (value.role == Role::Parameter) value.role = Role::Constant;
  }
  for (const SourceName& output : written.outputs) {
    node.outputs.push_back(output.text.empty() ? kNone : add_value(output, scope, Role::Activation, &written));
    if (node.outputs.back() != kNone) graph_.values[node.outputs.back()].producer = graph_.nodes.end_id();
  }
  const bool labelled = !written.label.text.empty();
  const SourceName& name = called(written);
  node.name = labelled ? scope.prefix + name.text : full_name(name.text, scope);
  if (!names_.nodes.insert(node.name).second) {
    fail(name.place, fmt::format("another node is named '{}'", node.name));
  }
  graph_.nodes.push_back(std::move(node));
}

// The first output with a name. Returns the operator's name if no output has one, which is an error that may not have
// been reported yet.
const SourceName& GraphBuilder::first_output(const SourceNode& node) {
  const auto found =
      std::find_if(node.outputs.begin(), node.outputs.end(), [](const auto& o) { return !o.text.empty(); });
  return found == node.outputs.end() ? node.op : *found;
}

// The node's name in its scope: its label if it has one, otherwise its first output.
const SourceName& GraphBuilder::called(const SourceNode& node) {
  return node.label.text.empty() ? first_output(node) : node.label;
}

Graph build_graph(const GraphSource& source, const OpRegistry& registry, int64_t batch, const ModelFiles& models,
                  std::vector<std::string>* files) {
  GraphBuilder builder(source, registry, batch, models);
  Graph graph = builder.build();
  if (files) *files = builder.files();
  return graph;
}

std::optional<int64_t> checked_element_count(const Shape& shape) {
  constexpr int64_t kMost = int64_t{1} << 44;
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && count > kMost / extent)) return std::nullopt;
    count *= extent;
  }
  return count;
}

}  // namespace arbalest
