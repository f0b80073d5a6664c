// SPDX-License-Identifier: Apache-2.0
#pragma once
// How Transpose walks through its tensors, on every device.

#include "graph/kernel.h"
#include "ops/math/strided.h"

namespace arbalest {

// Transpose's attribute `perm`, or if it is left out the axes of a tensor of that rank reversed.
std::vector<int64_t> permutation_of(const Node& node, size_t rank);

// A walk through Y and X, whose axes are permuted.
Strided transposing_walk(const KernelRequest& request);

}  // namespace arbalest
