// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU kernels of convolutions with partial statistics: the convolution, then the statistics.

#include "graph/op.h"

namespace arbalest {

std::unique_ptr<Kernel> conv_statistics_cpu(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_input_sums_cpu(const KernelRequest& request);

}  // namespace arbalest
