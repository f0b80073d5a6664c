// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Sgd.

#include "ops/optim/sgd.h"

#include "ops/optim/update.cuh"

namespace arbalest {

void register_optim_sgd_cuda(OpRegistry& registry) {
  registry.find("arbalest.Sgd")->cuda = cuda::update_cuda<SgdRule<float>>;
}

}  // namespace arbalest
