// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of few channels, as of images of 32 × 32 pixels, by kernels of ours: cuDNN's engines are made for more.
// 3 × 3 with stride 1 and padding 1, from 16, 32 or 64 channels to as many, in bfloat16, with float filter gradients.
// Compute capability 8.0, and shared memory.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kThinEngine;
extern const StatisticsEngine kThinStatistics;  // in chunks of statistics_chunks()

}  // namespace arbalest
