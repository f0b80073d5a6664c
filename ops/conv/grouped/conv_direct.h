// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolution by plain loops and, if it is depthwise, by kernels of ours. Both take what ConvolutionPlan::run does,
// `bias` for ForwardBias only (else null), and give the same bits each time. They throw RunError.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// Plain loops: slow, but for every shape. They stand in if cuDNN has no engine.
void run_direct_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                            const void* b, const float* bias, void* result);

// Depthwise convolutions, one filter to each channel, are bound by memory, which cuDNN's engines for groups are not
// made for. The function is_depthwise() is false if the filters are too large for shared memory.
bool is_depthwise(const ConvolutionProblem& problem);
int64_t depthwise_workspace(const ConvolutionProblem& problem, int multiprocessors);
void run_depthwise_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream,
                               const void* a, const void* b, const float* bias, void* result, void* workspace);

}  // namespace arbalest
