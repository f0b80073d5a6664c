// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of images of one to four channels, as a network's first, by kernels of ours: any stride and padding, and
// windows of up to 80 numbers. Kernels for more channels sum over as many as 16 of them at each tap, these over the
// numbers of a window. In bfloat16, with float filter gradients. Compute capability 8.0.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kColoursEngine;

}  // namespace arbalest
