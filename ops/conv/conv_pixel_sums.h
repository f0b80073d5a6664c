// SPDX-License-Identifier: Apache-2.0
#pragma once
// Filter gradients of pointwise convolutions (1 × 1, stride 1), which are sums over pixels of products of channels, by
// kernels of ours. cuDNN's engines leave much of the memory's rate unused where channels are few and pixels many. An
// even number of channels, up to 1024, in bfloat16, with float gradients. Compute capability 8.0, and shared memory.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kPixelSumsEngine;

}  // namespace arbalest
