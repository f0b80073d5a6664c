// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a convolution is solved on CUDA: by one of cuDNN's engines or a kernel of ours, whichever is faster, and with
// which passes around it.

#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/convolution_engine.h"

namespace arbalest {

struct Solution {
  const ConvolutionEngine* engine = nullptr;  // of ours; null: the plan
  std::shared_ptr<const ConvolutionPlan> plan = {};
  double microseconds = 0;    // the passes included
  bool bias_apart = false;    // and Relu
  int64_t lowered_bytes = 0;  // of the result before it is widened; 0: it goes straight out

  bool found() const { return engine != nullptr || plan != nullptr; }
  bool better_than(const Solution& other) const {
    return found() && (!other.found() || microseconds < other.microseconds);
  }
  std::string name() const { return engine != nullptr ? engine->name : plan->engine(); }
  // The plan's or the kernel's, and the lowered result.
  int64_t workspace_bytes(const ConvolutionProblem& problem, int multiprocessors) const;
  // The convolution into call.result, which is the lowered result if there is one.
  void run(CudaContext& context, const ConvolutionProblem& problem, const ConvolutionCall& call) const;
};

// The fastest solution. If the choice must be the same each time (ConvolutionProblem::deterministic), it does not rest
// on timings. Throws RunError if the device fails.
Solution solve(CudaContext& context, const ConvolutionProblem& problem);

// The first of our kernels that accepts the problem among those that are chosen so. Null: there is none.
const ConvolutionEngine* first_engine(ConvolutionEngine::Chosen chosen, const DeviceModel& device,
                                      const ConvolutionProblem& problem);

// Size in bytes of a tensor in a workspace, rounded up to the alignment.
int64_t aligned_bytes(const Shape& shape, DataType type);

}  // namespace arbalest
