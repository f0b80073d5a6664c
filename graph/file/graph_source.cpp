#include "graph/file/graph_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "graph/constants.h"
#include "graph/error_list.h"
#include "graph/file/onnx_operators.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// Bounds on what a file may ask for: a small file whose functions call each other can stand for any number of nodes.
constexpr int kDeepest = 64;
constexpr size_t kMostNodes = size_t{1} << 18;
constexpr size_t kLongestPath = 4096;
constexpr size_t kMostCandidates = 4096;  // that a name is compared with for a suggestion

// One function instance, or the graph itself.
struct Scope {
  const Scope* caller = nullptr;
  const SourceFunction* function = nullptr;  // none: the graph
  int depth = 0;
  std::string prefix;                                    // "h1/"
  std::unordered_map<std::string, ValueId> values;       // kNone: an operand the caller left out
  std::unordered_map<std::string, std::string> results;  // a function's output → the caller's name for it
  std::unordered_map<std::string, Attribute> attributes;
};

std::vector<std::string> names_of(const std::vector<SourceAttribute>& attributes) {
  std::vector<std::string> names;
  for (const SourceAttribute& attribute : attributes) names.push_back(attribute.name.text);
  return names;
}

class Builder {
 public:
  Builder(const GraphSource& source, const OpRegistry& registry, int64_t batch)
      : source_(source), registry_(registry), batch_(batch) {}

  Graph build() {
    graph_.name = source_.name;
    graph_.opsets = source_.opsets;
    check_opsets();
    index_functions();
    find_batch_symbol();
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
      if (unsound_.count(value.name.text)) return kNone;
      ValueId id = kNone;
      errors.attempt([&] { id = declare(value, scope); });
      return id;
    };
    for (const SourceValue& value : source_.values) {
      if (!value.data) declare_sound(value);
    }
    for (const SourceValue& output : source_.outputs) graph_.outputs.push_back(declare_sound(output));
    errors.throw_if_any();
    return std::move(graph_);
  }

 private:
  Position position(const SourcePlace& place) const { return {source_.file, place.line, place.column}; }
  [[noreturn]] void fail(const SourcePlace& place, const std::string& message) const {
    throw GraphError(position(place), message);
  }

  // Versions whose operators mean what this registry's do.
  void check_opsets() const {
    for (const auto& [domain, version] : source_.opsets) {
      const bool onnx = domain.empty() || domain == "ai.onnx";
      if (onnx && version < 7) {
        fail(source_.opsets_place, fmt::format("ONNX opset {} is not supported, expected 7 or later", version));
      }
      if (domain == "arbalest" && version != 1) {
        fail(source_.opsets_place, fmt::format("opset \"arbalest\" : {} is not known, expected version 1", version));
      }
    }
  }

  void index_functions() {
    for (const SourceFunction& function : source_.functions) {
      const std::string name = function.qualified_name();
      if (!functions_.emplace(name, &function).second) {
        fail(function.name.place, fmt::format("function '{}' is defined twice", name));
      }
      function_names_.push_back(name);
      check_unique(function.attributes, fmt::format("attribute of function '{}'", name));
      check_unique(function.inputs, fmt::format("input of function '{}'", name));
      check_unique(function.outputs, fmt::format("output of function '{}'", name));
    }
  }

  template <typename T>
  void check_unique(const std::vector<T>& items, const std::string& what) const {
    std::unordered_set<std::string_view> names;
    for (const T& item : items) {
      if (!names.insert(item.name.text).second) {
        fail(item.name.place, fmt::format("{} '{}' is stated twice", what, item.name.text));
      }
    }
  }

  void find_batch_symbol() {
    for (const SourceValue& input : source_.inputs) {
      for (const std::string& symbol : input.symbols) {
        if (batch_symbol_.empty()) batch_symbol_ = symbol;
      }
    }
  }

  TensorType bind(const SourceValue& value) const {
    TensorType type = *value.type;
    for (size_t i = 0; i < value.symbols.size() && batch_ > 0; ++i) {
      if (!batch_symbol_.empty() && value.symbols[i] == batch_symbol_) type.shape[i] = batch_;
    }
    return type;
  }

  // A new value under its full name.
  ValueId add_value(const SourceName& name, Scope& scope, Role role) {
    if (const auto found = scope.values.find(name.text); found != scope.values.end()) {
      const Position first = found->second == kNone ? Position{} : graph_.values[size_t(found->second)].where;
      fail(name.place, first.line ? fmt::format("value '{}' is defined twice, first at line {}", name.text, first.line)
                                  : fmt::format("value '{}' is defined twice", name.text));
    }
    Value value;
    value.name = full_name(name.text, scope);
    value.role = role;
    value.where = position(name.place);
    if (value.name.size() > kLongestPath) fail(name.place, fmt::format("a name is longer than {} bytes", kLongestPath));
    if (!value_names_.insert(value.name).second) {
      fail(name.place, fmt::format("value '{}' is defined twice", value.name));
    }
    graph_.values.push_back(std::move(value));
    const auto id = ValueId(graph_.values.size() - 1);
    scope.values.emplace(name.text, id);
    return id;
  }

  std::string full_name(const std::string& name, const Scope& scope) const {
    const auto result = scope.results.find(name);
    return result == scope.results.end() ? scope.prefix + name : result->second;
  }

  void add_input(const SourceValue& input, Scope& scope) {
    if (!input.type) fail(input.name.place, fmt::format("input '{}' needs a type and a shape", input.name.text));
    const ValueId id = add_value(input.name, scope, Role::Input);
    graph_.values[size_t(id)].type = bind(input);
    graph_.inputs.push_back(id);
  }

  void add_initializer(const SourceValue& value, Scope& scope) {
    const Role role = is_floating(value.type->dtype) ? Role::Parameter : Role::Constant;
    add_data(value.name, scope, role, *value.type, {Initializer::Kind::Data, 0, value.data});
  }

  void add_data(const SourceName& name, Scope& scope, Role role, TensorType type, Initializer initializer) {
    Value& value = graph_.values[size_t(add_value(name, scope, role))];
    value.type = std::move(type);
    value.initializer = std::move(initializer);
  }

  ValueId find(const SourceName& name, const Scope& scope, std::string_view what) const {
    if (const auto found = scope.values.find(name.text); found != scope.values.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [value, id] : scope.values) {
      if (known.size() < kMostCandidates) known.push_back(value);
    }
    std::sort(known.begin(), known.end());
    fail(name.place,
         fmt::format("{} '{}' is not defined before this place{}", what, name.text, did_you_mean(name.text, known)));
  }

  // An output, or the type of an intermediate value.
  ValueId declare(const SourceValue& stated, const Scope& scope) {
    const ValueId id = find(stated.name, scope, "value");
    if (id == kNone || !stated.type) return id;
    Value& value = graph_.values[size_t(id)];
    const TensorType type = bind(stated);
    if (value.producer != kNone) {
      value.declared = type;
    } else if (value.type != type) {
      fail(stated.name.place,
           fmt::format("'{}' is {}, declared as {}", stated.name.text, to_string(value.type), to_string(type)));
    }
    return id;
  }

  // Of the graph's own nodes all errors are told. What reads the result of a node that has one is looked at no further
  // than its operator: the rest would follow from the first error.
  void add_or_note(const SourceNode& node, Scope& scope, ErrorList& errors) {
    const bool follows = std::any_of(node.inputs.begin(), node.inputs.end(),
                                     [&](const SourceName& input) { return unsound_.count(input.text) > 0; });
    const bool sound = errors.attempt([&] { follows ? check_known(node) : add(node, scope); }) && !follows;
    if (sound) return;
    for (const SourceName& output : node.outputs) {
      if (!output.text.empty()) unsound_.insert(output.text);
    }
  }

  static std::string qualified_name(const SourceNode& node) {
    const std::string domain = node.domain == "ai.onnx" ? "" : node.domain;
    return domain.empty() ? node.op.text : domain + "." + node.op.text;
  }

  void check_known(const SourceNode& node) const {
    const std::string name = qualified_name(node);
    const Op* op = registry_.find(name);
    const bool rewritten = name == "Constant" || name == "ConstantOfShape";
    if (functions_.count(name) == 0 && !rewritten && (!op || op->internal)) {
      unknown_op(node, name, op != nullptr);
    }
  }

  void add(const SourceNode& node, Scope& scope) {
    if (graph_.nodes.size() >= kMostNodes) fail(node.op.place, fmt::format("more than {} nodes", kMostNodes));
    const std::string domain = node.domain == "ai.onnx" ? "" : node.domain;
    const std::string name = qualified_name(node);
    const bool no_results =
        std::all_of(node.outputs.begin(), node.outputs.end(), [](auto& o) { return o.text.empty(); });
    if (no_results) fail(node.op.place, fmt::format("a node of '{}' needs at least one output", name));
    check_unique(node.attributes, fmt::format("attribute of '{}'", name));
    if (const auto function = functions_.find(name); function != functions_.end()) {
      return inline_function(node, *function->second, scope);
    }
    const Op* op = registry_.find(name);
    if (!op && name == "Constant") return add_constant(node, scope);
    if (!op && name == "ConstantOfShape") return add_constant_of_shape(node, scope);
    if (!op || op->internal) unknown_op(node, name, op != nullptr);
    check_imported(node, domain, scope);
    add_op(node, *op, scope);
  }

  [[noreturn]] void unknown_op(const SourceNode& node, const std::string& name, bool internal) const {
    std::vector<std::string> known = function_names_;
    known.resize(std::min(known.size(), kMostCandidates));
    for (const Op& op : registry_.all()) {
      if (!op.internal) known.push_back(op.qualified_name());
    }
    std::string hint = did_you_mean(name, known);
    for (const std::string& candidate : known) {  // the right name in the wrong domain is nearer than any spelling
      if (candidate.substr(candidate.rfind('.') + 1) == node.op.text)
        hint = fmt::format("; did you mean '{}'?", candidate);
    }
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

  void check_imported(const SourceNode& node, const std::string& domain, const Scope& scope) const {
    const auto imports = [&](const Opsets& opsets) {
      return std::any_of(opsets.begin(), opsets.end(), [&](const auto& opset) {
        return opset.first == domain || (domain.empty() && opset.first == "ai.onnx");
      });
    };
    if (source_.opsets.empty() || imports(source_.opsets)) return;
    if (scope.function && imports(scope.function->opsets)) return;
    fail(node.op.place, fmt::format("domain \"{}\" is not in opset_import", domain));
  }

  void add_op(const SourceNode& written, const Op& op, Scope& scope) {
    Node node;
    node.op = &op;
    node.attributes = resolve_attributes(written, scope);
    node.where = position(written.op.place);
    for (const SourceName& input : written.inputs) {
      node.inputs.push_back(input.text.empty() ? kNone : find(input, scope, "input"));
      // An initialiser that says how an operator works, such as the scales of Resize, is not trained.
      const OperandSpec* spec = op.input_spec(node.inputs.size() - 1);
      if (!spec || !spec->constant || node.inputs.back() == kNone) continue;
      Value& value = graph_.values[size_t(node.inputs.back())];
      if (value.role == Role::Parameter) value.role = Role::Constant;
    }
    for (const SourceName& output : written.outputs) {
      node.outputs.push_back(output.text.empty() ? kNone : add_value(output, scope, Role::Activation));
      if (node.outputs.back() != kNone)
        graph_.values[size_t(node.outputs.back())].producer = NodeId(graph_.nodes.size());
    }
    const bool labelled = !written.label.text.empty();
    const SourceName& name = labelled ? written.label : first_output(written);
    node.name = labelled ? scope.prefix + name.text : full_name(name.text, scope);
    if (!node_names_.insert(node.name).second) {
      fail(name.place, fmt::format("another node is named '{}'", node.name));
    }
    graph_.nodes.push_back(std::move(node));
  }

  static const SourceName& first_output(const SourceNode& node) {
    return *std::find_if(node.outputs.begin(), node.outputs.end(), [](const auto& o) { return !o.text.empty(); });
  }

  Attributes resolve_attributes(const SourceNode& node, const Scope& scope) const {
    Attributes attributes;
    for (const SourceAttribute& written : node.attributes) {
      if (written.tensor) {
        fail(written.name.place, fmt::format("attribute '{}' of '{}' is a tensor, which only Constant takes",
                                             written.name.text, node.op.text));
      }
      attributes.set(written.name.text, resolve(written, scope), position(written.name.place));
    }
    return attributes;
  }

  // The value as written, or what the function's caller gave.
  Attribute resolve(const SourceAttribute& written, const Scope& scope) const {
    if (written.reference.empty()) return *written.value;
    if (!scope.function) {
      fail(written.name.place,
           fmt::format("'@{}' refers to a function's attribute, outside of any function", written.reference));
    }
    const auto found = scope.attributes.find(written.reference);
    if (found == scope.attributes.end()) {
      fail(written.name.place,
           fmt::format("function '{}' has no attribute '{}'{}", scope.function->qualified_name(), written.reference,
                       did_you_mean(written.reference, names_of(scope.function->attributes))));
    }
    if (!written.kind) return found->second;
    return converted(found->second, *written.kind, written.name.place,
                     fmt::format("attribute '{}'", written.name.text));
  }

  Attribute converted(const Attribute& value, AttributeKind kind, const SourcePlace& place,
                      const std::string& what) const {
    if (auto result = convert(value, kind)) return *result;
    fail(place, fmt::format("{} is {}, expected {}", what, to_string(value), name_of(kind)));
  }

  // ONNX's Constant is a value here, not a node.
  void add_constant(const SourceNode& node, Scope& scope) {
    if (node.attributes.size() != 1 || !node.inputs.empty() || node.outputs.size() != 1) {
      fail(node.op.place,
           "Constant has no inputs, one output and one attribute: value, value_float, value_floats, "
           "value_int or value_ints");
    }
    const SourceAttribute& attribute = node.attributes[0];
    const std::string& kind = attribute.name.text;
    const SourceName& name = node.outputs[0];
    if (kind == "value" && attribute.tensor) {
      return add_data(name, scope, Role::Constant, attribute.tensor->type,
                      {Initializer::Kind::Data, 0, attribute.tensor->data});
    }
    const std::vector<std::string> kinds = {"value", "value_float", "value_floats", "value_int", "value_ints"};
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      fail(attribute.name.place, fmt::format("unknown attribute '{}' of Constant, expected one of {}{}", kind,
                                             fmt::join(kinds, ", "), did_you_mean(kind, kinds)));
    }
    if (kind == "value" || attribute.tensor) {
      fail(attribute.name.place,
           fmt::format("attribute '{}' of Constant is {} tensor, expected {}", kind, attribute.tensor ? "a" : "no",
                       attribute.tensor ? "a number" : "a tensor"));
    }
    const Attribute value = resolve(attribute, scope);
    const std::string what = fmt::format("attribute '{}' of Constant", kind);
    const bool floating = kind.starts_with("value_float");
    const Attribute list =
        converted(value, floating ? AttributeKind::Floats : AttributeKind::Ints, attribute.name.place, what);
    if (floating) {
      const auto& numbers = std::get<std::vector<double>>(list);
      add_numbers(name, scope, DataType::Float32, std::vector<float>(numbers.begin(), numbers.end()),
                  kind.ends_with('s'));
    } else {
      add_numbers(name, scope, DataType::Int64, std::get<std::vector<int64_t>>(list), kind.ends_with('s'));
    }
  }

  // ONNX's ConstantOfShape is one number, by default the float 0, that Expand copies.
  void add_constant_of_shape(const SourceNode& node, Scope& scope) {
    SourceTensor number{{DataType::Float32, {}}, data_of(std::vector<float>{0}).data};
    for (const SourceAttribute& attribute : node.attributes) {
      if (attribute.name.text != "value" || !attribute.tensor || attribute.tensor->type.elements() != 1) {
        fail(attribute.name.place,
             fmt::format("attribute '{}' of ConstantOfShape is {}, expected only 'value', a tensor of one element",
                         attribute.name.text,
                         attribute.tensor ? to_string(attribute.tensor->type) : std::string("no tensor")));
      }
      number = {{attribute.tensor->type.dtype, {}}, attribute.tensor->data};
    }
    const SourceName value{first_output(node).text + ".value", node.op.place};
    add_data(value, scope, Role::Constant, number.type, {Initializer::Kind::Data, 0, number.data});
    SourceNode expand = node;
    expand.attributes.clear();
    expand.inputs.insert(expand.inputs.begin(), value);
    add_op(expand, registry_.get("Expand"), scope);
  }

  template <typename T>
  void add_numbers(const SourceName& name, Scope& scope, DataType dtype, const std::vector<T>& numbers, bool list) {
    if (!list && numbers.size() != 1) fail(name.place, "Constant's value is a list, expected one number");
    add_data(name, scope, Role::Constant, {dtype, list ? Shape{int64_t(numbers.size())} : Shape{}}, data_of(numbers));
  }

  void inline_function(const SourceNode& call, const SourceFunction& function, Scope& caller) {
    check_nesting(call, function, caller);
    Scope scope;
    scope.caller = &caller;
    scope.function = &function;
    scope.depth = caller.depth + 1;
    // Not the full name of the output: where that is the caller's result, its values' names would meet the caller's
    // own.
    scope.prefix = caller.prefix + (call.label.text.empty() ? first_output(call) : call.label).text + "/";
    bind_attributes(call, function, caller, scope);
    bind_operands(call, function, caller, scope);
    for (const SourceValue& value : function.values) {
      if (value.data) add_initializer(value, scope);
    }
    for (const SourceNode& node : function.nodes) add(node, scope);
    for (const SourceValue& value : function.values) {
      if (!value.data) declare(value, scope);
    }
    for (size_t i = 0; i < function.outputs.size(); ++i) {
      const ValueId id = declare(function.outputs[i], scope);
      if (i < call.outputs.size() && !call.outputs[i].text.empty()) bind_result(call.outputs[i], id, caller);
    }
  }

  void bind_result(const SourceName& name, ValueId id, Scope& caller) {
    if (!caller.values.emplace(name.text, id).second) {
      fail(name.place, fmt::format("value '{}' is defined twice", name.text));
    }
  }

  [[noreturn]] void fail_cycle(const SourceNode& call, const SourceFunction& function, const Scope& caller) const {
    std::vector<std::string> path = {function.qualified_name()};
    for (const Scope* scope = &caller; scope->function; scope = scope->caller) {
      path.push_back(scope->function->qualified_name());
      if (scope->function == &function) break;
    }
    std::reverse(path.begin(), path.end());
    fail(call.op.place, fmt::format("function '{}' calls itself: {}", path.back(), fmt::join(path, " → ")));
  }

  void check_nesting(const SourceNode& call, const SourceFunction& function, const Scope& caller) {
    for (const Scope* scope = &caller; scope; scope = scope->caller) {
      if (scope->function == &function) fail_cycle(call, function, caller);
    }
    if (caller.depth >= kDeepest) {
      fail(call.op.place, fmt::format("functions are nested more than {} deep", kDeepest));
    }
    // A call counts even where the function is empty, so that the work is bounded.
    if (++calls_ > kMostNodes) fail(call.op.place, fmt::format("more than {} calls of functions", kMostNodes));
  }

  void bind_attributes(const SourceNode& call, const SourceFunction& function, const Scope& caller,
                       Scope& scope) const {
    const std::string name = function.qualified_name();
    for (const SourceAttribute& given : call.attributes) {
      const auto wanted = std::find_if(function.attributes.begin(), function.attributes.end(),
                                       [&](const auto& a) { return a.name.text == given.name.text; });
      if (wanted == function.attributes.end()) {
        fail(given.name.place, fmt::format("function '{}' has no attribute '{}'{}", name, given.name.text,
                                           did_you_mean(given.name.text, names_of(function.attributes))));
      }
      if (given.tensor)
        fail(given.name.place, fmt::format("attribute '{}' is a tensor, which only Constant takes", given.name.text));
      Attribute value = resolve(given, caller);
      std::optional<AttributeKind> kind = wanted->kind;
      if (!kind && wanted->value) kind = AttributeKind(wanted->value->index());
      if (kind) {
        value = converted(value, *kind, given.name.place,
                          fmt::format("attribute '{}' of function '{}'", given.name.text, name));
      }
      scope.attributes.emplace(given.name.text, std::move(value));
    }
    for (const SourceAttribute& wanted : function.attributes) {
      if (scope.attributes.count(wanted.name.text)) continue;
      if (!wanted.value) {
        fail(call.op.place, fmt::format("function '{}' needs attribute '{}'", name, wanted.name.text));
      }
      scope.attributes.emplace(wanted.name.text, *wanted.value);
    }
  }

  void bind_operands(const SourceNode& call, const SourceFunction& function, const Scope& caller, Scope& scope) const {
    const auto check_count = [&](size_t given, size_t most, std::string_view what) {
      if (given <= most) return;
      fail(call.op.place, fmt::format("{} {}s given to function '{}', expected at most {}", given, what,
                                      function.qualified_name(), most));
    };
    check_count(call.inputs.size(), function.inputs.size(), "input");
    check_count(call.outputs.size(), function.outputs.size(), "output");
    for (size_t i = 0; i < function.inputs.size(); ++i) {
      const bool given = i < call.inputs.size() && !call.inputs[i].text.empty();
      scope.values.emplace(function.inputs[i].name.text, given ? find(call.inputs[i], caller, "input") : kNone);
    }
    for (size_t i = 0; i < function.outputs.size(); ++i) {
      const SourceName& output = function.outputs[i].name;
      if (scope.values.count(output.text)) {
        fail(output.place, fmt::format("function '{}' returns its input '{}'; pass it through Identity",
                                       function.qualified_name(), output.text));
      }
      if (i < call.outputs.size() && !call.outputs[i].text.empty()) {
        scope.results.emplace(output.text, full_name(call.outputs[i].text, caller));
      }
    }
  }

  const GraphSource& source_;
  const OpRegistry& registry_;
  const int64_t batch_;
  std::string batch_symbol_;
  Graph graph_;
  size_t calls_ = 0;
  std::unordered_map<std::string, const SourceFunction*> functions_;
  std::vector<std::string> function_names_;
  std::unordered_set<std::string> value_names_;
  std::unordered_set<std::string> node_names_;
  std::unordered_set<std::string> unsound_;  // results, of the graph itself, of nodes that have an error
};

}  // namespace

Graph build_graph(const GraphSource& source, const OpRegistry& registry, int64_t batch) {
  return Builder(source, registry, batch).build();
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
