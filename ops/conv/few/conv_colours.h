// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of images of one to four channels, as a network's first, by kernels of ours: strides and paddings of up
// to 16, 256 filters, and windows of up to 40 pairs of numbers, in which each row is rounded up. Kernels for more
// channels sum over as many as 16 of them at each tap, these over the numbers of a window. In bfloat16, with float
// filter gradients. Compute capability 8.0.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kColoursEngine;

}  // namespace arbalest
