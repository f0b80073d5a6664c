#pragma once
// Convolution by plain loops on the device: slow, but for every shape. Stands in where cuDNN has no engine.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// As ConvolutionPlan::run; `bias` may be null for ForwardBias's sake only. Same bits each time. Throws RunError.
void run_direct_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                            const void* b, const float* bias, void* result);

}  // namespace arbalest
