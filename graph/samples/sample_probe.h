// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether an operator keeps the samples of a batch apart. A node is run on the host by itself, with random numbers:
// then those of one sample change, and only that sample may change in its outputs.

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// How a value depends on the samples of a batch.
struct SampleOrder {
  enum class Kind : uint8_t {
    None,   // on none
    Apart,  // each element on one sample
    Mixed,  // elements depend on several samples
  };
  Kind kind = Kind::None;
  int64_t stride = 0;     // Apart: element e, in row-major order, is of sample e / stride modulo the samples
  NodeId origin = kNone;  // Mixed: the first node on the way that mixed them
};

// Asks nodes of a graph whose types are inferred for batches of `samples`, at least two. Equal nodes are run once.
class SampleProbe {
 public:
  SampleProbe(const Graph& graph, int64_t samples) : graph_(graph), samples_(samples) {}

  // The order of each of the node's outputs, given that of all values before it. An operator that has no CPU kernel is
  // taken to keep samples apart if its outputs have them along the first axis.
  std::vector<SampleOrder> outputs(NodeId node, const Table<ValueId, SampleOrder>& values);

 private:
  std::string key(const Node& node, const Table<ValueId, SampleOrder>& values) const;

  const Graph& graph_;
  const int64_t samples_;
  std::unordered_map<std::string, std::vector<SampleOrder>> known_;
};

}  // namespace arbalest
