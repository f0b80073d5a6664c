// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of operators that end in Relu, which the pass passes/fuse/relu.cpp makes.

#include <memory>

#include "graph/op.h"

namespace arbalest {

struct ReluGradSumsOutput {
  enum : size_t { dX, Sums };
};

// Adds and returns the gradient of the sum that Relu takes, from the gradient of the node's first output. If the bias,
// input `bias` of one number a channel, needs a gradient, the node that masks also sums its channels. The gradient of
// the bias is set then.
ValueId add_relu_gradient(GradContext& c, size_t bias);

// Follows `kernel` with Relu in the memory of its first output, of type `y`; on CPUs only. NaN stays NaN, whereas
// oneDNN's own Relu after a convolution makes it 0.
std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, const TensorType& y);

}  // namespace arbalest
