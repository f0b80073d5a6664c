// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of 1 × 1, with stride 1, and their gradients of images, in bfloat16, by a kernel of ours for Hopper
// GPUs. The kernel also leaves a batch norm the sums for which it would read the whole result. Such a convolution is a
// product of matrices, and most are bound by memory.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

// True if the kernel solves the problem.
bool is_pointwise(const ConvolutionProblem& problem);

// In chunks of whole tiles (kPointwiseTilePixels); if every tile is full, chunks take turns at the tiles.
extern const StatisticsEngine kPointwiseStatistics;

}  // namespace arbalest
