// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of many narrow groups, as those of ResNeXt and RegNet, on the matrix units group by group: cuDNN's
// engines are made for more channels. 3 × 3 with any padding, stride and dilation, from 4 channels a group, or a
// multiple of 8 up to 64, to as many, in bfloat16, with float filter gradients; gradients of images if the
// stride is 1, or 2 without dilation. Compute capability 8.0, and shared memory.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kGroupTilesEngine;

}  // namespace arbalest
