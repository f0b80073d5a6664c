// SPDX-License-Identifier: Apache-2.0
#pragma once
// Filter gradients of pointwise convolutions (1 × 1, stride 1), which are sums over pixels of products of channels, by
// kernels of ours. cuDNN's engines leave much of the memory's rate unused where channels are few and pixels many, and
// take long for few pixels, as of SE's layers. Channels are even, up to 1024; operands are bfloat16, gradients float.
// It needs compute capability 8.0 and 150 KiB of shared memory a block.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kPixelSumsEngine;

}  // namespace arbalest
