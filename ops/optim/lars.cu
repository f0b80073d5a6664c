// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Lars.

#include "ops/optim/lars.h"

#include "ops/optim/update.cuh"

namespace arbalest {

void register_optim_lars_cuda(OpRegistry& registry) {
  registry.find("arbalest.Lars")->cuda = cuda::update_cuda<LarsRule<float>>;
}

}  // namespace arbalest
