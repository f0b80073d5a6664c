// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Adamw.

#include "ops/optim/adamw.h"

#include "ops/optim/update.cuh"

namespace arbalest {

void register_optim_adamw_cuda(OpRegistry& registry) {
  registry.find("arbalest.Adamw")->cuda = cuda::update_cuda<AdamwRule<float>>;
}

}  // namespace arbalest
