// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of 3 × 3 from three channels, as VGG's first, by a kernel of ours. It sums over the 27 numbers of a
// pixel's window, whereas kernels that are made for more channels sum over as many as 16 for each tap. Stride 1 and
// padding 1, in bfloat16.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// True if the kernel solves the problem, on a device that can run it.
bool is_of_colours(const ConvolutionProblem& problem);

// Compute capability 8.0.
bool can_run_colours(const CudaContext& context);

// µs: see own_microseconds().
double colours_microseconds(CudaContext& context, const ConvolutionProblem& problem);

// Operands as ConvolutionPlan::run() takes them, bias and Relu included; the same bits each time. Throws RunError.
void run_colours_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* x,
                             const void* filter, const float* bias, void* result);

}  // namespace arbalest
