#pragma once
// Computing values of the forward pass once more in the backward pass, rather than keeping them until then.

#include <cstddef>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// What stands for a node where it is computed again: the same bits, and nothing else changes.
struct Repetition {
  const Op* op = nullptr;  // nullptr: the node cannot be computed again
  std::vector<ValueId> inputs;
  Attributes attributes;
  std::vector<ValueId> outputs;  // of the node: those that are made again, in the order of the repetition's own
  bool view = false;             // its output lies in its input's memory
};

// The nodes of a step's forward pass that can be computed again. A batch norm is, by the statistics that it has saved,
// without touching the running ones, and Dropout and StochasticDepth, which draw the same numbers; nothing else that
// draws numbers or changes what outlives the iteration.
class Repetitions {
 public:
  explicit Repetitions(const Graph& graph);

  const Repetition& of(NodeId node) const { return repetitions_[size_t(node)]; }
  // For each node that is `chosen` and of use, the node that its repetition has to precede: the first one behind the
  // forward pass that reads what it makes, be it through other repetitions. kNone for all others.
  std::vector<NodeId> places(const std::vector<bool>& chosen) const;

 private:
  Repetition of_node(const Node& node, const std::vector<bool>& outlives) const;

  const Graph& graph_;
  std::vector<Repetition> repetitions_;  // by node
  std::vector<NodeId> first_reader_;     // by value: behind the forward pass; kNone: there is none
};

// Computes the chosen nodes again: a copy of each, "NAME again", stands in the backward pass right before its first
// reader there, and all that read behind the forward pass, copies included, read what it makes. A node that cannot be
// computed again, or that nothing behind the forward pass needs, stays as it is.
void recompute(Graph& graph, const std::vector<bool>& chosen);

}  // namespace arbalest
