// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolutions of 3 × 3 with stride 1 whose border is padded by one pixel, and their gradients of images, in bfloat16,
// by a kernel of ours for Hopper GPUs. Pixels are fetched into shared memory once for all nine taps. The kernel also
// leaves a batch norm the sums for which it would read the whole result.

#include <cuda_bf16.h>

#include "ops/cuda/cudnn_graph.h"
#include "ops/norm/gradient_of.h"

namespace arbalest {

// True if the kernel solves the problem, on a device with has_hopper_kernels().
bool is_halo(const ConvolutionProblem& problem);

// Whether that is so, tiles are full and keep most of a device's processors busy: such ones were faster than cuDNN
// wherever they were timed.
bool is_fast_halo(const ConvolutionProblem& problem);

// µs without statistics, and with them: see own_microseconds().
double halo_microseconds(CudaContext& context, const ConvolutionProblem& problem);
double halo_microseconds(CudaContext& context, const ConvolutionProblem& problem, int64_t chunk_pixels);

// The convolution, with its bias and Relu, or the gradient of its images. Operands as ConvolutionPlan::run() takes
// them, the same bits each time. Throws RunError.
void run_halo_convolution(const ConvolutionProblem& problem, cudaStream_t stream, const void* a, const void* filter,
                          const void* bias, void* result);

// All pointers are aligned to 16 bytes. Partials are of chunks of `chunk_pixels`, pairs of tiles of halo_tile():
// (chunks, channels of the result, 2). The same bits each time. They throw RunError.

// The convolution, or the gradient of its images, of `a` and the filter, with the statistics of what is stored.
void run_halo_statistics(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream, const void* a,
                         const void* filter, void* result, void* partials);

// The gradient of images from `dy`, and what the batch norm before makes of it: see gradient_sums_kernel().
// from.dy is not read.
void run_halo_gradient_sums(const ConvolutionProblem& problem, int64_t chunk_pixels, cudaStream_t stream,
                            const void* dy, const void* filter, const cuda::GradientOf<__nv_bfloat16>& from,
                            cuda::Mask mask, bool two, void* g, void* partials);

}  // namespace arbalest
