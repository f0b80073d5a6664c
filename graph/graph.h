// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operator dataflow graph: flat vectors of nodes and values with ids, no pointers between them.
// It knows no thread, no stream and no device memory.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/table.h"
#include "graph/attributes.h"
#include "graph/types.h"

namespace arbalest {

struct Op;
class OpRegistry;

using NodeId = Id<struct NodeTag>;
using ValueId = Id<struct ValueTag>;

// How a parameter or a state gets its first content. Random kinds are keyed by the run's seed and the value's name, so
// they do not depend on the order of creation. `data` is in logical row-major order.
struct Initializer {
  enum class Kind : uint8_t { Constant, Normal, Uniform, Data };
  Kind kind = Kind::Constant;
  double a = 0;  // Constant: the value; Normal: the standard deviation (mean 0); Uniform: the bound (−a … a)
  std::shared_ptr<const std::vector<std::byte>> data;  // Data: bytes of the value's type
};

enum class Role : uint8_t {
  Activation,  // computed anew each instance
  Input,       // an output of Prefetch, or a graph input
  Parameter,   // trained; survives iterations
  Frozen,      // a parameter or a statistic of the model that training leaves as it started; saved with the others
  State,       // survives iterations, not trained: running statistics, momentum, tallies
  Constant,    // never written after the start
};

// A value whose memory is a part of another's: parameters in their arena.
struct View {
  ValueId base = kNone;
  int64_t offset_bytes = 0;
};

struct Value {
  std::string name;  // unique in the graph; Graph::rename() changes it
  TensorType type;
  Role role = Role::Activation;
  NodeId producer = kNone;
  View view;
  Initializer initializer;  // Parameter, State, Constant
  // An activation's content in row-major order if it is known when the graph is read; null if it depends on the data.
  std::shared_ptr<const std::vector<std::byte>> content;
  std::optional<TensorType> declared;  // as the graph's file states it (-1: any extent), until verify() has checked it
  Position where;
};

// Which part of a training step a node belongs to; plans and traces show it.
enum class Stage : uint8_t { Forward, Backward, Update };
std::string_view name_of(Stage stage);  // "forward", "backward", "update"

struct Node {
  const Op* op = nullptr;
  std::string name;              // unique; the first output's name unless given
  std::vector<ValueId> inputs;   // kNone: an optional input left out
  std::vector<ValueId> outputs;  // kNone: an optional output not asked for
  Attributes attributes;         // as written; defaults come from the op (see attribute() below)
  Position where;
  Stage stage = Stage::Forward;

  // The operand at a place that the operator's header names; kNone if it is left out. Without a place: the first, of
  // which facts in an operator's record speak (Op::element, Op::sum, Op::reshapes).
  ValueId input(size_t i = 0) const { return i < inputs.size() ? inputs[i] : kNone; }
  ValueId output(size_t i = 0) const { return i < outputs.size() ? outputs[i] : kNone; }
  bool is(std::string_view qualified_name) const;  // of this operator: "Relu", "arbalest.Linear"
};

// A value that the next iteration reads: `next` of iteration i is `current` of iteration i + 1. Both live in the same
// memory (the plan orders writers after readers). Weights, momentum, running statistics and tallies are carries.
struct Carry {
  ValueId current = kNone;
  ValueId next = kNone;
};

// An attribute of a function's or a model's call in the graph's file. Nodes stand in the call's place, and those that
// take the attribute's value have it as their own.
struct CallAttribute {
  struct Taker {
    NodeId node = kNone;
    std::string attribute;
  };
  std::string call, callee, name;  // "stage1/h1", "block.residual", "filters"
  std::optional<size_t> given_by;  // the enclosing call's attribute that it passes on: its place in Graph::calls
  std::vector<Taker> takers = {};
  bool fixed = false;  // it says how the file is read, as a model's file does or a constant's value
};

struct Graph {
  // The operators that nodes may be of, set by the maker of the graph. They outlive it.
  const OpRegistry* registry = nullptr;
  std::string name;
  std::vector<std::pair<std::string, int64_t>> opsets;  // domain, version; as in the file
  Table<NodeId, Node> nodes;                            // in topological order
  Table<ValueId, Value> values;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<Carry> carries;
  std::vector<CallAttribute> calls;  // of the graph's file, outer ones first; none after verify()

  ValueId add_value(std::string name, TensorType type, Role role = Role::Activation);  // makes the name unique
  ValueId add_value(Value value);  // as it is; its name is the caller's to make unique
  void rename(ValueId value, std::string name);
  void set_values(Table<ValueId, Value> all);  // in place of those there are
  // The registered operator: "Relu", "arbalest.Linear". Throws std::logic_error if there is none.
  const Op& op(std::string_view qualified_name) const;
  // Appends a node with `output_count` fresh outputs named `name`, `name`:1, …; the caller runs infer().
  NodeId add_node(const Op& op, std::string name, std::vector<ValueId> inputs, int output_count,
                  Attributes attributes = {});
  ValueId find_value(std::string_view name) const;  // kNone if there is none
  NodeId find_node(std::string_view name) const;
  const Node* find_op(std::string_view qualified_name) const;  // its first node; nullptr if there is none
  Node* find_op(std::string_view qualified_name);
  // Every use of `from` as a node input, graph output or carry becomes `to`.
  void replace_uses(ValueId from, ValueId to);
  // For each value, the nodes that read it, in order.
  Table<ValueId, std::vector<NodeId>> consumers() const;

 private:
  void index(const std::string& name, ValueId value);
  // Values by hash of their name. Renamed values stay under their former names too, so a hit is compared with its
  // current name.
  std::unordered_multimap<uint64_t, ValueId> by_name_;
};

// The value's outermost base and its offset there: follows views.
View storage_of(const Graph& graph, ValueId value);

// Whether each value is computed from weights, states and constants alone, whatever the batch is.
Table<ValueId, bool> made_of_weights(const Graph& graph);

// The attribute as written, converted to the op's kind, or the op's default. Throws GraphError if a required one is
// missing or the kind does not fit.
int64_t int_attribute(const Node& node, std::string_view name);
double float_attribute(const Node& node, std::string_view name);
std::string string_attribute(const Node& node, std::string_view name);
std::vector<int64_t> ints_attribute(const Node& node, std::string_view name);
std::vector<double> floats_attribute(const Node& node, std::string_view name);
std::vector<std::string> strings_attribute(const Node& node, std::string_view name);

// Throws GraphError at the node: "FILE:L:C: node 'h1' (Conv): MESSAGE".
[[noreturn]] void fail(const Node& node, const std::string& message);

// Drops the nodes whose entry of `erased` is true, in place; what they made has no producer then.
void erase_nodes(Graph& graph, const Table<NodeId, bool>& erased);

// Checks operand counts, known attributes of the right kind, that every input is defined before use, and unique names.
// Then infers the type of every value in node order and checks declared types. Throws one GraphError with all faults.
void verify(Graph& graph);

// Infers the outputs of one node from its inputs' types, and their content if that of all inputs is known.
void infer(Graph& graph, NodeId node);

}  // namespace arbalest
