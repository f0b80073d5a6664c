// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention over few rows, on CUDA: a block of threads holds all scores of a head, and adds up the gradient of a bias
// over the samples that have it in common. For bfloat16.

#include "ops/product/attention.h"

namespace arbalest {

// Whether these kernels take the problem. Operands begin at multiples of 16 bytes.
bool takes_short_attention(const KernelRequest& request, const AttentionProblem& problem);

// The kernels of the operator and of its gradient, for problems that are taken.
std::unique_ptr<Kernel> short_attention(const KernelRequest& request, const AttentionProblem& problem);
std::unique_ptr<Kernel> short_attention_grad(const KernelRequest& request, const AttentionProblem& problem);

}  // namespace arbalest
