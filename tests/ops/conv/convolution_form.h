// SPDX-License-Identifier: Apache-2.0
#pragma once
// Problems of convolutions, by their extents.

#include "ops/cuda/cudnn_graph.h"

namespace arbalest::test {

// A convolution in bfloat16 with the same extents on both axes. A filter's gradient is float. `group`: channels of a
// filter; 0: all.
struct ConvolutionForm {
  int64_t images = 1, channels = 1, height = 1, width = 1, filters = 1, kernel = 1, stride = 1, dilation = 1;
  int64_t pad_begin = 0, pad_end = 0, group = 0;

  ConvolutionProblem problem(ConvolutionProblem::Kind kind) const {
    const auto made = [&](int64_t extent) {
      return (extent + pad_begin + pad_end - (kernel - 1) * dilation - 1) / stride + 1;
    };
    ConvolutionProblem problem;
    problem.kind = kind;
    problem.relu = kind == ConvolutionProblem::Kind::ForwardBias;
    problem.type = DataType::Bfloat16;
    problem.output_type = kind == ConvolutionProblem::Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
    problem.x = {images, channels, height, width};
    problem.w = {filters, group > 0 ? group : channels, kernel, kernel};
    problem.y = {images, filters, made(height), made(width)};
    problem.stride = {stride, stride};
    problem.dilation = {dilation, dilation};
    problem.pad_begin = {pad_begin, pad_begin};
    problem.pad_end = {pad_end, pad_end};
    return problem;
  }
};

}  // namespace arbalest::test
