// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of 3 × 3 with stride 1 whose border is padded by one pixel, and their gradients of images, in bfloat16,
// by a kernel of ours for Hopper GPUs. Pixels are fetched into shared memory once for all nine taps. The kernel also
// leaves a batch norm the sums for which it would read the whole result.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

// True if the kernel solves the problem, with or without statistics.
bool is_halo(const ConvolutionProblem& problem);

extern const ConvolutionEngine kHaloEngine;     // of problems that fill its tiles
extern const StatisticsEngine kHaloStatistics;  // in chunks of pairs of tiles of halo_tile()

}  // namespace arbalest
