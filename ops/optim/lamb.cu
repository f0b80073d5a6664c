// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Lamb.

#include "ops/optim/lamb.h"

#include "ops/optim/update.cuh"

namespace arbalest {

void register_optim_lamb_cuda(OpRegistry& registry) {
  registry.find("arbalest.Lamb")->cuda = cuda::update_cuda<LambRule<float>>;
}

}  // namespace arbalest
