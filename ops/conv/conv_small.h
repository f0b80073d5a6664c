// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of small images with few channels and any window, as LeNet's, by kernels of ours: cuDNN's engines are
// made for more. Up to 64 channels to up to 64, in bfloat16, with float filter gradients; gradients of images if the
// stride is 1.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// True if these kernels solve the problem, on a device that can run them.
bool is_small(const ConvolutionProblem& problem);

// Compute capability 8.0, and 150 KiB of shared memory a block: GPUs of 8.6 and 8.9 have less.
bool can_run_small(const CudaContext& context);

// µs: see own_microseconds().
double small_microseconds(CudaContext& context, const ConvolutionProblem& problem);

int64_t small_workspace(const ConvolutionProblem& problem, int multiprocessors);

// Operands as ConvolutionPlan::run() takes them, bias and Relu included; the same bits each time. Throws RunError.
void run_small_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                           const void* b, const float* bias, void* result, void* workspace);

}  // namespace arbalest
