// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolution by plain loops and, if it is depthwise, by kernels of ours.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

// Plain loops: slow, but for every shape. They stand in if cuDNN has no engine. Operands need no alignment.
extern const ConvolutionEngine kPlainLoopsEngine;

// Depthwise convolutions, one filter to each channel, are bound by memory, which cuDNN's engines for groups are not
// made for. It refuses filters that are too large for shared memory.
extern const ConvolutionEngine kDepthwiseEngine;

}  // namespace arbalest
