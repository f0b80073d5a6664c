// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which values of a graph share memory, and which nodes write over it.

#include <map>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// Whether the node does nothing but show its first input otherwise.
bool is_view(const Node& node);

class MemoryHomes {
 public:
  explicit MemoryHomes(const Graph& graph);

  // The value whose memory this one has: itself, unless it is a part or a view of another, or made in its place.
  ValueId home(ValueId value) const { return home_[value]; }
  // Whether nothing writes over the value, which `producer` made, before the node `last` has run.
  bool is_whole_until(ValueId value, NodeId producer, NodeId last) const;
  // The nodes that write over the value's memory, in order.
  const std::vector<NodeId>& writers(ValueId value) const;

 private:
  Table<ValueId, ValueId> home_;
  std::map<ValueId, std::vector<NodeId>> writers_;  // by home
};

}  // namespace arbalest
