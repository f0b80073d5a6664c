#pragma once
// Fused operators in terms of simpler ones (Op::decompose): helpers to write them, and the kernels that run them.

#include <string_view>
#include <utility>
#include <vector>

#include "graph/op.h"

namespace arbalest {

// The only output of a new node.
inline ValueId add_one(ExpandContext& context, std::string_view op, std::vector<ValueId> inputs,
                       Attributes attributes = {}) {
  return context.add(op, "", std::move(inputs), 1, std::move(attributes))[0];
}

// A kernel for CPUs that runs the kernels of what the node's operator stands for. It computes in float if operands are
// bfloat16, and rounds the outputs. It is as slow as it is general, so it serves operators that passes make for GPUs.
std::unique_ptr<Kernel> decomposed_cpu(const KernelRequest& request);

}  // namespace arbalest
