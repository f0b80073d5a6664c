// SPDX-License-Identifier: Apache-2.0
#pragma once
// A node that is run on the host by its CPU kernel, outside of any plan: to find what is known before anything runs.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "graph/op.h"

namespace arbalest {

class HostNode {
 public:
  using Bytes = std::vector<std::byte>;

  // The node as it is after the pass fold_constants, for the types that the graph has inferred. Throws GraphError if
  // a constant operand is not known.
  HostNode(const Graph& graph, const Node& node);

  // Without its constant operands, which are attributes.
  const Node& node() const { return node_; }
  // False if the operator has no CPU kernel for these types.
  bool has_kernel() const { return kernel_ != nullptr; }
  // The outputs, row-major elements; null for one that is left out or is a token. `content` gives those of each input.
  // Throws RunError if the kernel finds a fault in the content.
  std::vector<std::shared_ptr<Bytes>> run(const std::function<std::shared_ptr<const Bytes>(ValueId)>& content) const;

 private:
  const Graph& graph_;
  Node node_;
  std::vector<TensorType> outputs_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace arbalest
