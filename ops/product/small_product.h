// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of small matrices on CUDA, such as the steps of a recurrent layer: launches and waiting for memory are all
// of their time.

#include "ops/cuda/cuda_context.h"
#include "ops/product/products.h"

namespace arbalest::cuda {

// Products in bfloat16 of at most 512 tiles of 16 × 16 numbers, at most 1024 deep, whose rows in memory are multiples
// of 16 bytes.
bool is_small_product(const DeviceModel& device, const Problem& problem);

// The kernel of such a product, with all that may be added to it. nullptr: it takes other problems.
std::unique_ptr<Kernel> small_product(const KernelRequest& request, const Problem& problem);

}  // namespace arbalest::cuda
