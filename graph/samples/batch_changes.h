// SPDX-License-Identifier: Apache-2.0
#pragma once
// Changes of nodes by which a model takes other batches than its file's (open_batch.h).

#include <memory>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// A change of an operand by which a node takes other batches.
struct BatchChange {
  enum class Kind : uint8_t {
    States,   // operand `input`, a list, becomes the attribute `list`
    Reads,    // operand `input` is `list`, with `multiple` times the batch at `place`
    Spreads,  // operand `input` is expanded by such a list of ones: it has one element along the axis `place`
    Holds,    // operand `input` becomes a constant
    Names,    // the node becomes a Reshape of its first operand to `list`
  };
  Kind kind = Kind::States;
  size_t input = 0;
  std::vector<int64_t> list = {};
  size_t place = 0;
  int64_t multiple = 1;
  TensorType type = {};  // of the constant
  std::shared_ptr<const std::vector<std::byte>> content = {};
};

// Makes changes in a graph, with the nodes and constants that they need.
class BatchChanger {
 public:
  // `source`: the model's input whose first axis has the batch.
  BatchChanger(Graph& graph, ValueId source) : graph_(graph), source_(source) {}

  // Nodes are appended to the graph, which `node` is not in, or is to be put back into.
  void change(Node& node, const BatchChange& change);

 private:
  ValueId add(const Node& node, std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {});
  ValueId constant(const Node& node, TensorType type, Initializer initializer);
  ValueId constant(const Node& node, const std::vector<int64_t>& numbers);
  ValueId list(const Node& node, const BatchChange& change);

  Graph& graph_;
  const ValueId source_;
  int added_ = 0;
};

}  // namespace arbalest
