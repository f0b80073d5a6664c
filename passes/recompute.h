// SPDX-License-Identifier: Apache-2.0
#pragma once
// Recomputation: values of the forward pass are computed again in the backward pass instead of being kept until then.

#include <cstddef>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// The nodes of a step's forward pass that can be computed again. These include batch norms, which use the statistics
// they have saved and leave the running ones alone. They include Dropout and StochasticDepth, which draw the same
// numbers. Other nodes that draw random numbers or change state that outlives the iteration are not among them.
class Repetitions {
 public:
  explicit Repetitions(const Graph& graph);

  const Repetition& of(NodeId node) const { return repetitions_[node]; }
  // For each node that is `chosen` and of use, the node that its repetition has to precede; kNone for all others. That
  // is the first one after the forward pass that reads its results, directly or through other repetitions.
  Table<NodeId, NodeId> places(const Table<NodeId, bool>& chosen) const;

 private:
  Repetition of_node(const Node& node, const Table<ValueId, bool>& outlives) const;

  const Graph& graph_;
  Table<NodeId, Repetition> repetitions_;
  Table<ValueId, NodeId> first_reader_;  // the first one after the forward pass; kNone: there is none
};

// Computes the chosen nodes again: a copy of each, "NAME again", stands in the backward pass right before its first
// reader there. All readers after the forward pass, copies included, read the copy's results. A node stays as it is if
// it cannot be computed again or nothing after the forward pass needs it.
void recompute(Graph& graph, const Table<NodeId, bool>& chosen);

}  // namespace arbalest
