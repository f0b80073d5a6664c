// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of small images with few channels and any window, as LeNet's, by kernels of ours: cuDNN's engines are
// made for more. Up to 64 channels to up to 64, in bfloat16, with float filter gradients; gradients of images if the
// stride is 1. Compute capability 8.0, and 150 KiB of shared memory a block: GPUs of 8.6 and 8.9 have less. Problems
// that kThinEngine takes are left to it.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

extern const ConvolutionEngine kSmallEngine;

}  // namespace arbalest
