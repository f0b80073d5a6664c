// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU kernels of the operators in batch_norm_pair.cpp.

#include "graph/op.h"

namespace arbalest {

std::unique_ptr<Kernel> batch_norm_pair_training_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_pair_again_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> batch_norm_pair_grad_cpu(const KernelRequest& request);

}  // namespace arbalest
