// SPDX-License-Identifier: Apache-2.0
#pragma once
// Depthwise convolutions of images by 3 × 3, 5 × 5 and 7 × 7 filters, stride 1 or 2, in tiles that a thread keeps in
// registers. conv_depthwise.cu has those of every other form.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// True if the kernels solve the depthwise problem: an even number of channels, no dilation.
bool is_tiled_depthwise(const ConvolutionProblem& problem);

int64_t tiled_depthwise_workspace(const ConvolutionProblem& problem, int multiprocessors);  // in bytes

// The same bits each time. Throws RunError.
void run_tiled_depthwise(const ConvolutionProblem& problem, const ConvolutionCall& call);

}  // namespace arbalest
