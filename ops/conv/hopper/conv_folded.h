// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stem of a network, 7 × 7 with stride 2 from three channels, on Hopper GPUs. In the folded image (conv_fold.h) a
// row of taps is 64 consecutive elements in memory, so that the convolution is a product of matrices whose rows
// overlap. A row of the image serves all rows of the result that read it while it is in shared memory.

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

// True if `problem`, a folded one in bfloat16, forward or the filter's gradient (in Float32), is such a convolution.
// Rows of the result fill tiles by half at least.
bool is_folded_row(const ConvolutionProblem& problem);

extern const ConvolutionEngine kFoldedGradientEngine;  // the filter's gradient

// The result and its statistics, in chunks of tiles of row_tile_pixels(): see StatisticsEngine.
void run_folded_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                           void* partials);

}  // namespace arbalest
