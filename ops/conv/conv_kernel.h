// SPDX-License-Identifier: Apache-2.0
#pragma once
// The CUDA kernels of convolutions, whatever makes them, for operators that do more than convolve.

#include "graph/op.h"
#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// The kernel of Conv, and that of arbalest.ConvGradInput: (dY, W) → dX, of a node with a window's attributes. Further
// operands are not looked at. They throw RunError.
std::unique_ptr<Kernel> conv_cuda(const KernelRequest& request);
std::unique_ptr<Kernel> conv_grad_input_cuda(const KernelRequest& request);

// X, W and Y are (N,C,…), (K,C/g,…) and (N,K,…), in every kind.
ConvolutionProblem convolution_problem(const KernelRequest& request, ConvolutionProblem::Kind kind, const Shape& x,
                                       const Shape& w, const Shape& y);

}  // namespace arbalest
