// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kernels of ours for convolutions, a row each: ops/conv/conv_solution.cpp and conv_statistics.cu list them and choose.
// Those that only some devices have are rows that other devices do not accept.

#include <cuda_bf16.h>

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

namespace cuda {  // ops/norm/gradient_of.h
enum class Mask : uint8_t;
template <typename T>
struct GradientOf;
template <typename T>
struct PairGradientOf;
}  // namespace cuda

struct ConvolutionEngine {
  // First: wherever it accepts. Timed: if it is faster than the others and cuDNN's. Last: if nothing else accepts.
  enum class Chosen : uint8_t { First, Timed, Last };
  enum class Adds : uint8_t { Nothing, Bias, BiasAndRelu };

  const char* name = nullptr;      // as `profile` shows it
  const char* revision = nullptr;  // in the key of kept times: its number is to be changed with how fast the kernel is
  Chosen chosen = Chosen::Timed;
  Adds adds = Adds::Nothing;
  bool takes_few = false;  // channels: images need no folding
  bool (*accepts)(const DeviceModel& device, const ConvolutionProblem& problem) = nullptr;
  // Whether it was faster than cuDNN wherever it was timed: the rule if a choice must be the same each time.
  bool (*is_faster)(const DeviceModel& device, const ConvolutionProblem& problem) = nullptr;
  int64_t (*workspace)(const ConvolutionProblem& problem, int multiprocessors) = nullptr;  // in bytes; null: none
  // The same bits each time. Throws RunError.
  void (*run)(const ConvolutionProblem& problem, const ConvolutionCall& call) = nullptr;

  int64_t workspace_bytes(const ConvolutionProblem& problem, int multiprocessors) const {
    return workspace == nullptr ? 0 : workspace(problem, multiprocessors);
  }
};

// A kernel that convolves and leaves a batch norm partials of the result: (chunks, channels, 2), in chunks of
// `chunk_pixels` as pixel_chunks() has them. The same bits each time; they throw RunError.
struct StatisticsEngine {
  using T = __nv_bfloat16;

  const char* name = nullptr;
  const char* revision = nullptr;  // null: it is not timed, but taken wherever it accepts
  bool (*accepts)(const DeviceModel& device, const ConvolutionProblem& problem, int64_t chunk_pixels) = nullptr;
  bool (*is_faster)(const DeviceModel& device, const ConvolutionProblem& problem) = nullptr;
  int64_t (*workspace)(const ConvolutionProblem& problem) = nullptr;  // in bytes; null: none
  // The convolution, or the gradient of its images, with the statistics of what is stored.
  void (*statistics)(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                     void* partials) = nullptr;
  // The gradient of images, and what the batch norm before makes of it: see gradient_sums_kernel(). from.dy is not
  // read. Null: it has none.
  void (*gradient_sums)(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                        const cuda::GradientOf<T>& from, cuda::Mask mask, bool two, void* partials) = nullptr;
  // The same for two batch norms before it: see pair_gradient_sums_kernel(). Null: it has none.
  void (*pair_gradient_sums)(const ConvolutionProblem& problem, int64_t chunk_pixels, const ConvolutionCall& call,
                             const cuda::PairGradientOf<T>& from, void* partials, void* partials2) = nullptr;
};

}  // namespace arbalest
