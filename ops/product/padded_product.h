// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of matrices on CUDA whose rows are no multiple of 16 bytes: cuBLASLt multiplies copies of them that are.

#include "ops/product/padding.h"

namespace arbalest::cuda {

// The kernel of a product padded in this way. Its workspace has the padded matrices and a quarter of the request's
// limit for cuBLASLt. nullptr: cuBLASLt has no algorithm for a part of it.
std::unique_ptr<Kernel> padded_product(const KernelRequest& request, const Problem& problem,
                                       const ProductPadding& padding);

// Bytes that padded matrices may have in the request's workspace.
int64_t memory_for_padding(const KernelRequest& request);

}  // namespace arbalest::cuda
