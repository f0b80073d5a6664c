// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrices whose singular values are brought near 1 on CUDA devices, by the turns of turns.h with operands in bfloat16.
// One launch does all that fit into a block's shared memory, a block each. Products of cuBLASLt do the others, those of
// one shape together.

#include <memory>
#include <vector>

#include "ops/cuda/cuda_context.h"

namespace arbalest::cuda {

// (rows, columns), row by row; the result is multiplied by `scale`.
struct MatrixPlace {
  int parameter;  // its number in the operand `tensors` of an update, which says where it begins
  int rows, columns;
  float scale;
};

// Whether an instance has no update by the gradient: it makes none, restarts, or is skipped.
struct Idle {
  const StepScalars* scalars;
  const float* clip;  // below 0: skipped; may be null
  bool restarts;
  __device__ bool operator()() const {
    return scalars->update == 0 || (restarts && scalars->restart != 0) || (clip != nullptr && *clip < 0.0f);
  }
};

// The flat arrays of an instance.
struct MatrixArrays {
  float* values;
  const int32_t* tensors;
  Idle idle;
};

class OrthogonalMatrices {
 public:
  OrthogonalMatrices(const KernelRequest& request, const std::vector<MatrixPlace>& places);
  ~OrthogonalMatrices();

  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Turns the matrices in place.
  void run(const MatrixArrays& arrays, void* workspace, cudaStream_t stream) const;

 private:
  class Large;  // matrices of one shape, by products of cuBLASLt

  DeviceBuffer small_;  // MatrixPlace each
  int small_count_ = 0, small_shared_ = 0;
  std::vector<std::unique_ptr<Large>> large_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace arbalest::cuda
