// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes a graph node by node, and knows at any time what reads each value. Nodes are removed and put in order at the
// end, so that ids of nodes hold until then.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {

// The two inputs of a node in both orders, as those of sums and products may come.
inline std::array<std::pair<ValueId, ValueId>, 2> both_orders(const Node& node) {
  const ValueId a = node.input(BinaryInput::A), b = node.input(BinaryInput::B);
  return {{{a, b}, {b, a}}};
}

class Rewriter {
 public:
  // Others may add values to the graph before finish(), but no nodes. `asked`: values that have to stay, as they are
  // asked for by their ids.
  explicit Rewriter(Graph& graph, const std::vector<ValueId>& asked = {});

  // The nodes that there were at the start.
  IdRange<NodeId> ids() const { return {0, count_}; }
  const Node& node(NodeId id) const { return graph_.nodes[id]; }
  const Value& value(ValueId id) const { return graph_.values[id]; }
  const Shape& shape(ValueId id) const { return value(id).type.shape; }
  bool is(NodeId id, std::string_view op) const { return id != kNone && node(id).is(op); }
  ValueId input(NodeId id, size_t i = 0) const { return node(id).input(i); }  // as Node has them
  ValueId output(NodeId id, size_t i = 0) const { return node(id).output(i); }
  // Whether the node computes each element of a result of this shape for itself (Op::element).
  bool is_elementwise(NodeId id, const Shape& result) const;
  // The node of this operator that makes the value; kNone if there is none.
  NodeId producer(ValueId value, std::string_view op) const;
  // Whether the node gives its input another shape (Op::reshapes).
  bool reshapes(NodeId id) const;
  // The axes that a reduction takes, from 0 and in order; none if they are not known.
  std::optional<std::vector<int64_t>> reduced_axes(NodeId id) const;
  // The nodes that read the value, once for each of their inputs; kNone stands for the graph itself, which reads its
  // outputs, what it carries to the next iteration and what is asked for.
  const std::vector<NodeId>& readers(ValueId value) const { return readers_[value]; }
  // The node that alone reads the value, and reads it once; kNone: there is none.
  NodeId only_reader(ValueId value) const;
  // The same if it is of this operator.
  NodeId only_reader(ValueId value, std::string_view op) const;

  // Types are not inferred again unless infer() is called.
  void set_op(NodeId id, std::string_view op) { graph_.nodes[id].op = &graph_.op(op); }
  void set_inputs(NodeId id, std::vector<ValueId> inputs);
  void set_input(NodeId id, ValueId value) { set_input(id, {}, value); }  // the first
  void set_input(NodeId id, size_t i, ValueId value);                     // earlier ones not there yet are left out
  // All that read `from` read `to` instead, the graph too.
  void replace_uses(ValueId from, ValueId to);
  // All nodes that read `from` read `to` instead, but not the graph.
  void replace_reads(ValueId from, ValueId to);
  // Values that the node made before and does not make any more have no producer then.
  void set_outputs(NodeId id, std::vector<ValueId> outputs);
  // The node is of another operator from now on, with all that this one takes and makes. Types are inferred.
  void become(NodeId id, std::string_view op, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
              Attributes attributes);
  // One more output, as the operator infers it.
  ValueId add_output(NodeId id, const std::string& name);
  Attributes& attributes(NodeId id) { return graph_.nodes[id].attributes; }
  void infer(NodeId id) { arbalest::infer(graph_, id); }

  // A value that no node makes yet.
  ValueId add_value(std::string name, TensorType type) { return graph_.add_value(std::move(name), std::move(type)); }
  // The result, with its type inferred, of a new node right before another one (after those that were added there), or
  // right after it. The new node has the other one's stage and place in the file.
  ValueId add_before(NodeId at, std::string_view op, std::string name, std::vector<ValueId> inputs,
                     Attributes attributes = {}) {
    return add(at, -1, op, std::move(name), std::move(inputs), std::move(attributes));
  }
  ValueId add_after(NodeId at, std::string_view op, std::string name, std::vector<ValueId> inputs,
                    Attributes attributes = {}) {
    return add(at, 1, op, std::move(name), std::move(inputs), std::move(attributes));
  }
  void remove(NodeId id);
  // Removes the node, whose only result is the value, if nothing reads that. Returns whether it has.
  bool remove_unread(NodeId id, ValueId value);
  // The node's place among all, if every one is put at a place of its own, from 0.
  void put(NodeId id, int64_t place) { key_[id] = place; }
  void move_before(NodeId id, NodeId at) { key_[id] = key_[at] - 1; }

  // Puts the nodes in their order and drops those that were removed; nothing else may be called after it.
  void finish();

 private:
  ValueId add(NodeId at, int64_t behind, std::string_view op, std::string name, std::vector<ValueId> inputs,
              Attributes attributes);
  void grow();

  Graph& graph_;
  const NodeId count_;
  Table<ValueId, std::vector<NodeId>> readers_;
  Table<NodeId, int64_t> key_;  // its place in the order to come; negative: removed
};

}  // namespace arbalest
