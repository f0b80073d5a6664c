// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of cuBLASLt's algorithms for a product of matrices is the fastest, timed and kept as convolutions' engines are.

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/convolution_timer.h"

namespace arbalest {

// Y (m,n) = op(A) · op(B) [+ a bias (n)], `batch` times, described by all that its time depends on but the device.
struct ProductProblem {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool trans_a = false, trans_b = false, tf32 = false, bias = false;
  DataType in = DataType::Float32, out = DataType::Float32;
  std::array<int64_t, 3> pitches = {};  // elements from a row of A, B and Y to the next; 0: rows follow each other
  int64_t workspace_limit = 0;
  int concurrent = 1;  // as ConvolutionProblem has it
};

// A product as cuBLASLt's heuristics take it.
struct ProductDescription {
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t a, b, y;
  cublasLtMatmulPreference_t preference;
};

struct ProductAlgorithm {
  bool found = false;
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;

  // The numbers that make it what it is: if they are the same, so is the algorithm.
  std::string name() const;
};

// Launches an algorithm with A, B, the bias, the result and the workspace that it gets.
using RunAlgorithm = std::function<void(const ProductAlgorithm& algorithm, const ConvolutionCall& with)>;

// The heuristics' first.
ProductAlgorithm first_algorithm(CudaContext& context, const ProductDescription& description);
// The fastest of several; the first if the device has no memory to time them.
ProductAlgorithm fastest_algorithm(CudaContext& context, const ProductProblem& problem,
                                   const ProductDescription& description, const RunAlgorithm& run);

// Which of several kernels of a product is the fastest, timed once and kept by `name`, which is to change with any of
// them. All take A, B and the bias as inputs 0 to 2. A null kernel is left out. It is the last if they cannot be timed.
using MakeProduct = std::function<std::unique_ptr<Kernel>()>;
int64_t fastest_product(CudaContext& context, const std::string& name, const ProductProblem& problem,
                        const std::vector<MakeProduct>& ways);

}  // namespace arbalest
