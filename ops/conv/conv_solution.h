// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a convolution is solved on CUDA: by one of cuDNN's engines or a kernel of ours, whichever is faster, and with
// which passes around it.

#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

struct Solution {
  enum class Own : uint8_t { None, Thin, Small, Colours, FoldedRows, Halo };  // kernels of ours

  std::shared_ptr<const ConvolutionPlan> plan;
  Own own = Own::None;
  double microseconds = 0;    // the passes included
  bool bias_apart = false;    // and Relu
  int64_t lowered_bytes = 0;  // of the result before it is widened; 0: it goes straight out

  bool found() const { return own != Own::None || plan != nullptr; }
  bool better_than(const Solution& other) const {
    return found() && (!other.found() || microseconds < other.microseconds);
  }
  std::string engine() const;
  // The plan's or the kernel's, and the lowered result.
  int64_t workspace_bytes(const ConvolutionProblem& problem, int multiprocessors) const;
};

// The fastest solution. If the choice must be the same each time (ConvolutionProblem::deterministic), it does not rest
// on timings. Throws RunError if the device fails.
Solution solve(CudaContext& context, const ConvolutionProblem& problem);

// Size in bytes of a tensor in a workspace, rounded up to the alignment.
int64_t aligned_bytes(const Shape& shape, DataType type);

// Estimated µs of a separate pass: the launch, and `bytes` at about the rate of the memory.
double pass_microseconds(int64_t bytes);

}  // namespace arbalest
