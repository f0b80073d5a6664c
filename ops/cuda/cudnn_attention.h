// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scaled dot-product attention by cuDNN's fused engines: bfloat16 operands, float accumulation.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/types.h"
#include "ops/cuda/cuda_context.h"

namespace arbalest {

// One operand: samples, heads, rows, depth, and the elements from one to the next of each.
struct AttentionOperand {
  std::vector<int64_t> extents, strides;
};

struct FusedAttentionProblem {
  bool gradient = false;
  AttentionOperand q, k, v, y;
  AttentionOperand bias;  // added to the scores: 1 or samples, 1 or heads, rows of Q, rows of K; empty: nothing is
  bool gradient_of_bias = false;  // wanted as well
  bool causal = false;            // keys after each row are hidden
  float scale = 1;
  bool deterministic = false;
  int64_t workspace_limit = 0;

  std::string key() const;  // everything above
};

class FusedAttentionPlan {
 public:
  FusedAttentionPlan();
  ~FusedAttentionPlan();

  int64_t workspace_bytes() const { return workspace_bytes_; }

  struct Operands {
    const void *q, *k, *v;
    void* y;           // the result; an operand of the gradient
    void* statistics;  // as y: floats, (samples, heads, rows of Q, 1)
    const void* dy = nullptr;
    void *dq = nullptr, *dk = nullptr, *dv = nullptr;
    const void* bias = nullptr;
    void* dbias = nullptr;
  };
  // Runs with the context that it was made with. Any thread may call it. Throws RunError.
  void run(CudaContext& context, cudaStream_t stream, const Operands& operands, void* workspace) const;

 private:
  friend class FusedAttentionPlanner;
  struct State;
  std::unique_ptr<State> state_;
  int64_t workspace_bytes_ = 0;
};

// The plan for a problem, shared by all kernels of the context; nullptr if no engine supports it. Throws
// RunError if the device fails.
std::shared_ptr<const FusedAttentionPlan> find_attention_plan(CudaContext& context,
                                                              const FusedAttentionProblem& problem);

}  // namespace arbalest
