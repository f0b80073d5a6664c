// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of matrices on CUDA, by the first engine of a table that takes them: ops/product/gemm.cu.

#include <memory>
#include <vector>

#include "graph/kernel.h"
#include "ops/product/gemm.h"

namespace arbalest::cuda {

// Elements from one matrix to the next, of A, B and Y.
struct MatrixSteps {
  int64_t a = 0, b = 0, y = 0;
};

// The inputs of the kernel that are operands; below 0: there is none.
struct ProductInputs {
  int a = 0, b = 1, c = -1, summand = -1;
};

// Y (M,N) = alpha · op(A) · op(B) [+ beta · C] [+ a factor · a summand], C of floats, the summand of Y's type; for
// batches without C, and for several calls without both.
struct Problem {
  int64_t m, n, k;
  bool trans_a, trans_b;
  DataType in, out;
  float alpha = 1, beta = 0, summand_factor = 1;
  Addend addend = Addend::None;
  int64_t batch = 1;  // products of one call, `steps` apart
  MatrixSteps steps = {};
  MatrixSteps pitches = {};  // elements from a row to the next, for library_product() alone; 0: rows follow each other
  std::vector<MatrixSteps> calls = {{}};  // offsets of each call's first matrices
  ProductInputs inputs = {};

  int64_t products() const { return batch * int64_t(calls.size()); }
};

// Throws GraphError for types of other elements, and RunError if no engine takes the problem.
std::unique_ptr<Kernel> product_kernel(const KernelRequest& request, const Problem& problem);

// The kernel by cuBLASLt, without a bias in its epilogue; nullptr if the library has no algorithm for it.
std::unique_ptr<Kernel> library_product(const KernelRequest& request, const Problem& problem);

// Y += beta · C, all of Y and C of the problem.
void add_matrix(const KernelContext& context, const Problem& problem, int multiprocessors);

}  // namespace arbalest::cuda
