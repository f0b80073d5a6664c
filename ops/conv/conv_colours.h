#pragma once
// Convolutions of 3 × 3 from three channels, as VGG's first, by a kernel of ours: it sums over the 27 numbers that a
// pixel of the result is made of, where what is made for more channels sums over as many as 16 of each tap. Stride 1
// and padding 1, in bfloat16.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// Whether the kernel solves the problem, where a device can run it.
bool is_of_colours(const ConvolutionProblem& problem);

// Compute capability 8.0.
bool can_run_colours(const CudaContext& context);

// µs: see own_microseconds().
double colours_microseconds(CudaContext& context, const ConvolutionProblem& problem);

// Operands as ConvolutionPlan::run() takes them, bias and Relu included; the same bits each time. Throws RunError.
void run_colours_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* x,
                             const void* filter, const float* bias, void* result);

}  // namespace arbalest
