// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values whose content is known when the graph is read. Exporters put small computations of shapes, axes and bounds
// around operators; those are evaluated as types are inferred.

#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// No more than this is computed when a graph is read, for one node.
inline constexpr int64_t kMostContentBytes = int64_t{16} << 20;
inline constexpr double kMostContentOperations = 1 << 28;
// And for all nodes, of bytes read and written and of operations: a small file may ask for any number of nodes.
inline constexpr double kMostContentWork = 1 << 30;

// Elements as Op::content gives them.
template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& elements) {
  std::vector<std::byte> bytes(elements.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

// The same as the first content of a value.
template <typename T>
Initializer data_of(const std::vector<T>& elements) {
  return {Initializer::Kind::Data, 0, std::make_shared<std::vector<std::byte>>(bytes_of(elements))};
}

// The content of a value, row-major elements of its type: a constant's, or what infer_content() found. Null: not known.
std::shared_ptr<const std::vector<std::byte>> content_of(const Graph& graph, ValueId value);

// The number that every element of the value is, true being 1; nothing: they differ, there are none, or the content is
// not known.
std::optional<double> number_of(const Graph& graph, ValueId value);

// Sets the content of the node's outputs, whose types are inferred. Op::content gives it, and says by no bytes for a
// value that has elements that it is unknown. Otherwise the operator's CPU kernel does, if the content of all inputs is
// known, at most 16 MiB come out and at most 2^28 operations are needed. Returns the work that it was, in bytes read
// and written and in operations. Throws GraphError at the node if the kernel finds a fault in the content.
double infer_content(Graph& graph, NodeId node);

// The content of `value`, numbers of any type, as an attribute of `kind` (Int, Float, Ints or Floats). Throws
// GraphError at the node: "input 'axes' is …".
Attribute content_as(const Graph& graph, const Node& node, size_t input, AttributeKind kind);

// Which input of the node is its constant operand `name`; none if the operator has no such operand, or the node
// leaves it out.
std::optional<size_t> constant_operand(const Node& node, std::string_view name);

// Moves what the node's constant operands hold into the attributes of the same names. Throws GraphError as content_as()
// does.
void take_operands(const Graph& graph, Node& node);

// Choices between two values by a condition that is known when the graph is read: arbalest.Choose, which ONNX's If
// becomes. Exporters write If when a model asks for a shape.

// Operands of arbalest.Choose: the condition, then what is taken if it is true and if it is false. Once it is
// known the other one is left out, and so are the nodes that nothing else reads.
inline constexpr size_t kChoiceCondition = 0, kChoiceThen = 1, kChoiceElse = 2;

bool is_choice(const Node& node);
// The place of the operand that is taken; 0: the condition is not known.
size_t chosen_operand(const Graph& graph, const Node& node);

// Leaves out of every choice whose condition is known what is not taken, and erases the nodes that are of no use then.
void leave_out_unchosen(Graph& graph);
// Choices become Identity: types are inferred, for the batch that the graph runs with.
void settle_choices(Graph& graph);

}  // namespace arbalest
