// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of 1 × 1, with stride 1, and their gradients of images, in bfloat16, by a kernel of ours for Hopper
// GPUs. The kernel also leaves a batch norm the sums for which it would read the whole result. Such a convolution is a
// product of matrices, and most are bound by memory.

#include <cuda_bf16.h>

#include "ops/cuda/cudnn_graph.h"
#include "ops/norm/gradient_of.h"

namespace arbalest {

// True if the kernel solves the problem, on a device with has_hopper_kernels().
bool is_pointwise(const ConvolutionProblem& problem);

// µs with statistics: see own_microseconds().
double pointwise_microseconds(CudaContext& context, const ConvolutionProblem& problem, int64_t chunk_pixels);

// All pointers are aligned to 16 bytes. Partials are of chunks of `chunk_pixels`, whole tiles (kPointwiseTilePixels):
// (chunks, channels of the result, 2); if every tile is full, chunks take turns at the tiles. The same bits each
// time. They throw RunError.

// The convolution, or the gradient of its images, of `a` and the filter, with the statistics of what is stored.
void run_pointwise_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                              const void* a, const void* filter, void* result, void* partials);

// The gradient of images from `dy`, with the mask and the sums of the batch norm before it: see
// gradient_sums_kernel(). from.dy is not read.
void run_pointwise_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                                 const void* dy, const void* filter, const cuda::GradientOf<__nv_bfloat16>& from,
                                 cuda::Mask mask, bool two, void* g, void* partials);

// The same for two batch norms before it: see pair_gradient_sums_kernel().
void run_pointwise_pair_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                                      const void* dy, const void* filter,
                                      const cuda::PairGradientOf<__nv_bfloat16>& from, void* g, void* partials,
                                      void* partials2);

}  // namespace arbalest
