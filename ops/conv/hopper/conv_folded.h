// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stem of a network, 7 × 7 with stride 2 from three channels, on Hopper GPUs. In the folded image (conv_fold.h) a
// row of taps is 64 consecutive elements in memory, so that the convolution is a product of matrices whose rows
// overlap. A row of the image serves all rows of the result that read it while it is in shared memory.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

// True if `problem`, a folded one in bfloat16, forward or the filter's gradient (in Float32), is such a convolution,
// for devices with has_hopper_kernels(). Rows of the result fill tiles by half at least.
bool is_folded_row(const ConvolutionProblem& problem);

// The result and its statistics: partials as of pixel_chunks(), in chunks of tiles of row_tile_pixels(). The same bits
// each time. Pointers are aligned to 16 bytes. Throws RunError.
void run_folded_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                           const void* images, const void* filter, void* result, void* partials);

// The filter's gradient: operands as ConvolutionPlan::run() takes them; the same bits each time. Throws RunError.
int64_t folded_gradient_workspace(const ConvolutionProblem& problem, int multiprocessors);
void run_folded_gradient(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream,
                         const void* images, const void* dy, void* dw, void* workspace);

// µs of the filter's gradient: see own_microseconds().
double folded_gradient_microseconds(CudaContext& context, const ConvolutionProblem& problem);

}  // namespace arbalest
