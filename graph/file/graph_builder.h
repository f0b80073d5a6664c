// SPDX-License-Identifier: Apache-2.0
#pragma once
// How build_graph() makes a graph of a source: one object a source. Constants, attributes, calls of functions and calls
// of models have files of their own.

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "graph/file/graph_file.h"
#include "graph/file/graph_source.h"
#include "graph/file/model_call.h"

namespace arbalest {

class GraphBuilder {
 public:
  GraphBuilder(const GraphSource& source, const OpRegistry& registry, int64_t batch, const ModelFiles& models)
      : source_(source), registry_(registry), batch_(batch), models_(models) {}

  Graph build();
  // Those that were read: the graph's, the models' that it calls, and what their tensors are kept in.
  std::vector<std::string> files() const;

 private:
  // One function instance, or the graph itself.
  struct Scope {
    const Scope* caller = nullptr;
    const SourceFunction* function = nullptr;  // none: the graph
    int depth = 0;
    std::string prefix;                                    // "h1/"
    std::unordered_map<std::string, ValueId> values;       // kNone: an operand the caller left out
    std::unordered_map<std::string, std::string> results;  // a function's output → the caller's name for it
    struct Bound {
      Attribute value;
      size_t call = 0;  // its place in Graph::calls
    };
    std::unordered_map<std::string, Bound> attributes;
  };

  // Bounds what a file may ask for: a small file whose functions call each other can stand for any number of nodes.
  static constexpr size_t kMostNodes = size_t{1} << 18;
  static constexpr size_t kMostAttributes = 1000;                   // of a node or a function
  static constexpr size_t kMostAttributeBytes = size_t{256} << 20;  // of all nodes; each call of a function has its own

  Position position(const SourcePlace& place) const { return {source_.file, place.line, place.column}; }
  [[noreturn]] void fail(const SourcePlace& place, const std::string& message) const {
    throw GraphError(position(place), message);
  }

  void check_opsets() const;
  void index_functions();
  template <typename T>
  void check_unique(const std::vector<T>& items, const std::string& what) const;
  void find_batch_symbol();
  void find_own_names();

  // Values.
  TensorType bind(const SourceValue& value) const;
  static std::string at(const SourcePlace& place, const SourceNode* node);
  ValueId add_value(const SourceName& name, Scope& scope, Role role, const SourceNode* node = nullptr);
  void check_path(const std::string& path, const SourcePlace& place) const;
  std::string full_name(const std::string& name, const Scope& scope) const;
  void add_input(const SourceValue& input, Scope& scope);
  void add_initializer(const SourceValue& value, Scope& scope);
  void add_data(const SourceName& name, Scope& scope, Role role, TensorType type, Initializer initializer,
                const SourceNode* node = nullptr);
  ValueId find(const SourceName& name, const Scope& scope, std::string_view what,
               const SourceNode* node = nullptr) const;
  ValueId declare(const SourceValue& stated, const Scope& scope);

  // Nodes.
  void add_or_note(const SourceNode& node, Scope& scope, ErrorList& errors);
  static std::string qualified_name(const SourceNode& node);
  void check_known(const SourceNode& node) const;
  void add(const SourceNode& node, Scope& scope);
  [[noreturn]] void unknown_op(const SourceNode& node, const std::string& name, bool internal) const;
  void check_imported(const SourceNode& node, const std::string& domain, const Scope& scope) const;
  void add_op(const SourceNode& written, const Op& op, Scope& scope);
  static const SourceName& first_output(const SourceNode& node);
  static const SourceName& called(const SourceNode& node);

  // Attributes.
  Attributes resolve_attributes(const SourceNode& node, const Scope& scope);
  Attribute resolve(const SourceAttribute& written, const Scope& scope);
  void check_attributes(const std::vector<SourceAttribute>& attributes, const std::string& owner) const;
  void count_bytes(size_t bytes, const SourcePlace& place);
  Attribute converted(const Attribute& value, AttributeKind kind, const SourcePlace& place,
                      const std::string& what) const;
  // The attribute of the enclosing call that `written` refers to; nullptr if it does not refer to any.
  CallAttribute* passed_on(const SourceAttribute& written, const Scope& scope);
  Attribute resolve_fixed(const SourceAttribute& written, const Scope& scope);
  size_t note_call(const SourceNode& node, const Scope& caller, const std::string& attribute);
  void bind_attributes(const SourceNode& call, const SourceFunction& function, const Scope& caller, Scope& scope);

  // Nodes that are values here.
  void add_constant(const SourceNode& node, Scope& scope);
  void add_constant_of_shape(const SourceNode& node, Scope& scope);
  template <typename T>
  void add_numbers(const SourceNode& node, Scope& scope, DataType dtype, const std::vector<T>& numbers, bool list);

  // Calls of functions.
  void inline_function(const SourceNode& call, const SourceFunction& function, Scope& caller);
  void bind_operands(const SourceNode& call, const SourceFunction& function, const Scope& caller, Scope& scope) const;
  void bind_result(const SourceNode& call, size_t output, ValueId id, Scope& caller);
  void check_nesting(const SourceNode& call, const SourceFunction& function, const Scope& caller);
  [[noreturn]] void fail_cycle(const SourceNode& call, const SourceFunction& function, const Scope& caller) const;

  // Calls of models.
  static bool calls_model(const SourceNode& node);
  void call_model(const SourceNode& node, Scope& scope);
  bool flag_of(const SourceAttribute& attribute, int64_t value) const;
  const GraphSource& model_source(const SourceNode& node, const std::string& attribute);
  void check_models_called() const;
  void place_model(const SourceNode& call, const CalledModel& model, Scope& scope);
  bool is_of_layer(const std::string& name) const;
  ValueId state_operand(const SourceNode& call, ValueId operand, const Value& declared, const std::string& prefix);
  ValueId place_value(const Graph& model, ValueId id, const std::string& prefix, Table<ValueId, ValueId>& placed);
  static std::string free_name(std::unordered_set<std::string>& taken, const std::string& prefix,
                               const std::string& name);

  const GraphSource& source_;
  const OpRegistry& registry_;
  const int64_t batch_;
  const ModelFiles& models_;
  std::string batch_symbol_;
  Graph graph_;
  size_t calls_ = 0, attribute_bytes_ = 0;
  std::unordered_map<std::string, const SourceFunction*> functions_;
  std::set<std::string> called_;                // models
  std::map<std::string, GraphSource> sources_;  // of models, by path
  struct Names {
    std::unordered_set<std::string> values, nodes;  // taken
    std::unordered_set<std::string> own;            // of values that the graph's own nodes and lists define
    std::unordered_set<std::string> owners;  // results of the graph's own layers: "logits" will own "logits.weight"
  };
  Names names_;
  std::unordered_set<std::string> unsound_;  // results, of the graph itself, of nodes that have an error
};

template <typename T>
void GraphBuilder::check_unique(const std::vector<T>& items, const std::string& what) const {
  std::unordered_set<std::string_view> names;
  for (const T& item : items) {
    if (!names.insert(item.name.text).second) {
      fail(item.name.place, fmt::format("{} '{}' is stated twice", what, item.name.text));
    }
  }
}

}  // namespace arbalest
