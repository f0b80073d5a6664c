#pragma once
// What operators that end in Relu share: the pass graph/passes/fuse/relu.cpp makes them.

#include <memory>

#include "graph/op.h"

namespace arbalest {

// What flows back into the sum that Relu takes, of what flows into the node's first output. Where the bias, input
// `bias` of one number a channel, needs a gradient, the node that masks sums its channels as well, and that gradient is
// set.
ValueId add_relu_gradient(GradContext& c, size_t bias);

// On the CPU: what `kernel` writes to its first output, of this type, and Relu in the same memory behind it. NaN stays
// NaN, which oneDNN's own Relu behind a convolution makes 0.
std::unique_ptr<Kernel> with_relu(std::unique_ptr<Kernel> kernel, const TensorType& y);

}  // namespace arbalest
