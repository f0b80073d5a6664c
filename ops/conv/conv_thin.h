// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of few channels, as of images of 32 × 32 pixels, by kernels of ours: cuDNN's engines are made for more.
// 3 × 3 with stride 1 and padding 1, from 16, 32 or 64 channels to as many, in bfloat16, with float filter gradients.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// True if these kernels solve the problem, on a device that can run them.
bool is_thin(const ConvolutionProblem& problem);

// Compute capability 8.0, and shared memory.
bool can_run_thin(const CudaContext& context);

// µs: see own_microseconds().
double thin_microseconds(CudaContext& context, const ConvolutionProblem& problem);

int64_t thin_workspace(const ConvolutionProblem& problem, int multiprocessors);

// Operands as ConvolutionPlan::run() takes them; the same bits each time. Throws RunError.
void run_thin_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                          const void* b, void* result, void* workspace);

}  // namespace arbalest
