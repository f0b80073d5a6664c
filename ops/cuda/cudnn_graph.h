// SPDX-License-Identifier: Apache-2.0
#pragma once
// Convolution plans from cuDNN: channels-last images, K·R·S·C filters, float accumulation. The engine is the fastest of
// those that cuDNN's heuristics propose, timed on the device once a process for each problem and kind of device. If
// several learners will run it at the same time, several calls are timed together: the engine that is fastest alone may
// keep others from running concurrently.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/types.h"
#include "ops/cuda/cuda_context.h"

namespace arbalest {

struct ConvolutionProblem {
  enum class Kind : uint8_t {
    Forward,      // (x, w) → y
    ForwardBias,  // (x, w, bias) → y; bias: (K) floats
    GradInput,    // (dy, w) → dx
    GradWeight,   // (x, dy) → dw
  };
  Kind kind = Kind::Forward;
  bool relu = false;                         // Relu applied to y, for the forward kinds
  DataType type = DataType::Float32;         // of the operands, except for the bias
  DataType output_type = DataType::Float32;  // of the result
  Shape x, w, y;  // logical, in every kind: (N,C,…), (K,C/g,…), (N,K,…), with two or three spatial axes
  std::vector<int64_t> stride, dilation, pad_begin, pad_end;  // one a spatial axis
  bool tf32 = false;                                          // whether matrix units may round float operands
  bool deterministic = false;  // only engines that give the same bits, and the heuristics' first of them, untimed
  int64_t workspace_limit = 0;
  int concurrent = 1;  // that run at the same time on the device, and are timed so

  std::string key() const;  // everything above
  const Shape& output_shape() const;
};

inline bool all_are(const std::vector<int64_t>& values, int64_t value) {
  return std::all_of(values.begin(), values.end(), [value](int64_t v) { return v == value; });
}

// Operands of a call, each aligned to 16 bytes, and the stream with its device's number of multiprocessors.
struct ConvolutionCall {
  cudaStream_t stream = nullptr;
  int multiprocessors = 0;
  const void *a = nullptr, *b = nullptr;  // the first two operands in Kind's order
  const float* bias = nullptr;            // for ForwardBias only
  void *result = nullptr, *workspace = nullptr;
};

class ConvolutionPlan {
 public:
  ConvolutionPlan();
  ~ConvolutionPlan();

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // The timed µs, a share of those of the concurrent calls; 0 if it was not timed.
  double microseconds() const { return microseconds_; }
  const std::string& engine() const { return engine_; }

  // Runs with the context that it was made with. Any thread may call it. Throws RunError.
  void run(CudaContext& context, const ConvolutionCall& call) const;

 private:
  friend class ConvolutionPlanner;
  struct State;
  std::unique_ptr<State> state_;
  int64_t workspace_bytes_ = 0;
  double microseconds_ = 0;
  std::string engine_;
};

// µs of the engine that was chosen for a problem before, in this process or an earlier one; 0: none is known.
double known_convolution_microseconds(const CudaContext& context, const ConvolutionProblem& problem);

// The plan for a problem, shared by all kernels of the context; nullptr if no engine supports it. Throws
// RunError if the device fails.
std::shared_ptr<const ConvolutionPlan> find_convolution_plan(CudaContext& context, const ConvolutionProblem& problem);

}  // namespace arbalest
