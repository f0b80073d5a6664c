#pragma once
// The kernels of convolutions, and those of ours that stand in where cuDNN has none or slow ones. Both of these take what ConvolutionPlan::run does, `bias` for ForwardBias only (else null),
// and give the same bits each time. They throw RunError.

#include "graph/op.h"
#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// The kernel of Conv, and that of arbalest.ConvGradInput, whatever makes it: (dY, W) → dX, of a node with a window's
// attributes. Further operands are not looked at.
std::unique_ptr<Kernel> conv_cuda(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_input_cuda(const KernelRequest& request);

// What a pass of its own takes in µs: the launch, and its bytes at about the memory's rate.
double pass_microseconds(int64_t bytes);

// X, W and Y are (N,C,…), (K,C/g,…) and (N,K,…), in every kind.
ConvolutionProblem convolution_problem(const KernelRequest& request, ConvolutionProblem::Kind kind, const Shape& x,
                                       const Shape& w, const Shape& y);

// Plain loops: slow, but for every shape. Stands in where cuDNN has no engine.
void run_direct_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                            const void* b, const float* bias, void* result);

// Depthwise convolutions, one filter to each channel, are bound by memory: cuDNN's engines for groups are not made for
// that. False where the filters are too large for shared memory.
bool is_depthwise(const ConvolutionProblem& problem);
int64_t depthwise_workspace(const ConvolutionProblem& problem, int multiprocessors);
void run_depthwise_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream,
                               const void* a, const void* b, const float* bias, void* result, void* workspace);

}  // namespace arbalest
