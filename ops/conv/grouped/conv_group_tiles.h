// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of many narrow groups, as those of ResNeXt and RegNet, on the matrix units group by group: cuDNN's
// engines are made for more channels. Groups have 4 channels, or a multiple of 8 up to 64, in and out. Filters are 3 ×
// 3 with any padding, and strides and dilations up to 64; gradients of images need stride 1, or 2 without dilation.
// Operands are bfloat16, filter gradients float. It needs compute capability 8.0 and 150 KiB of shared memory a block.
//
// Inf may come out as NaN elsewhere: in groups of 4 channels a pixel's Inf in its neighbour group, and in a filter's
// gradient in its whole group.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kGroupTilesEngine;

}  // namespace arbalest
