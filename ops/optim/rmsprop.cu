// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Rmsprop.

#include "ops/optim/rmsprop.h"

#include "ops/optim/update.cuh"

namespace arbalest {

void register_optim_rmsprop_cuda(OpRegistry& registry) {
  registry.find("arbalest.Rmsprop")->cuda = cuda::update_cuda<RmspropRule<float>>;
}

}  // namespace arbalest
