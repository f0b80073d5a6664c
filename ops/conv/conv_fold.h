// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folding: a convolution of few channels as one of more, which matrix units are made for. Each fold × fold pixels of
// the image become one with their channels after each other, and further channels are zeros. The fold is the stride, or
// 1. If it is the stride, the filter is moved by a zero row and column if the padding asks for it, and the image is
// padded in memory.

#include <cuda_runtime.h>

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

struct Folding {
  int fold = 1, channels = 0, wide = 0;  // wide: channels afterwards; 0: nothing is folded
  int shift = 0;                         // zero rows and columns ahead of the filter's
  int images = 0, height = 0, width = 0, filters = 0, kernel_height = 0, kernel_width = 0;  // before
  int folded_height = 0, folded_width = 0, folded_kernel_height = 0, folded_kernel_width = 0;
  int pad = 0;  // rows and columns of the folded image ahead of the image's
};

// How a problem without groups and with two spatial axes is folded to `wide` channels, a multiple of 4. Then `problem`
// becomes the folded one, with the same result, or a filter gradient folded as the filter is. False, and nothing
// changes: it cannot be.
bool fold(ConvolutionProblem& problem, int by, int64_t wide, Folding& folding);

// Images (N,H,W,C) and filters (K,R,S,C) of `type`, Float32 or Bfloat16.
void fold_image(cudaStream_t stream, int multiprocessors, const Folding& folding, DataType type, const void* from,
                void* to);
void fold_filter(cudaStream_t stream, int multiprocessors, const Folding& folding, DataType type, const void* from,
                 void* to);
// A filter's gradient the other way, of two types.
void unfold_filter(cudaStream_t stream, int multiprocessors, const Folding& folding, DataType from_type,
                   const void* from, DataType to_type, void* to);

// Convolutions that, folded by their stride, are those of conv_folded.h, in chunks of tiles of row_tile_pixels().
extern const StatisticsEngine kFoldedStatistics;

}  // namespace arbalest
