// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of 3 × 3 from three channels, as VGG's first, by a kernel of ours. It sums over the 27 numbers of a
// pixel's window, whereas kernels that are made for more channels sum over as many as 16 for each tap. Stride 1 and
// padding 1, in bfloat16. Compute capability 8.0.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kColoursEngine;

}  // namespace arbalest
