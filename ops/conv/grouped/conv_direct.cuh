// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers that our convolution kernels share.

#include "ops/conv/grouped/conv_direct.h"
#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/window.cuh"

namespace arbalest::cuda {

inline DeviceWindow device_window(const ConvolutionProblem& problem) {
  SlidingWindow sliding{pixels_of(problem.x), pixels_of(problem.y), {}};
  sliding.window.kernel = pixels_of(problem.w);
  const size_t first = 3 - problem.stride.size();
  for (size_t axis = 0; axis < problem.stride.size(); ++axis) {
    sliding.window.stride[first + axis] = problem.stride[axis];
    sliding.window.dilation[first + axis] = problem.dilation[axis];
    sliding.window.pad_begin[first + axis] = problem.pad_begin[axis];
    sliding.window.pad_end[first + axis] = problem.pad_end[axis];
  }
  return DeviceWindow(sliding);
}

}  // namespace arbalest::cuda
