// SPDX-License-Identifier: Apache-2.0

// MatMul and arbalest.BatchMatMul on CUDA: cuBLASLt's products of strided batches.

#include "ops/product/matmul.h"

#include "ops/product/products.h"

namespace arbalest {

using namespace cuda;

namespace {

std::unique_ptr<Kernel> matmul(const KernelRequest& request) {
  using In = GemmInput;
  BatchedProduct product(request.node, request.inputs[In::A], request.inputs[In::B]);
  product.join_rows();
  Problem problem = {.m = product.rows,
                     .n = product.columns,
                     .k = product.depth,
                     .trans_a = product.trans_a,
                     .trans_b = product.trans_b,
                     .in = request.inputs[In::A].dtype,
                     .out = request.outputs[0].dtype};
  if (request.outputs[0].elements() == 0) {
    problem.m = 0;
    return product_kernel(request, problem);
  }
  const Strided walk = product.walk();
  // The innermost axis of the batch is one call.
  const int last = walk.rank - 1;
  problem.batch = walk.extent[last];
  problem.steps = {walk.stride[1][last], walk.stride[2][last], walk.stride[0][last]};
  for (int axis = 0; axis < last; ++axis) {
    std::vector<MatrixSteps> calls;
    for (const MatrixSteps& from : problem.calls) {
      for (int64_t i = 0; i < walk.extent[axis]; ++i) {
        calls.push_back(
            {from.a + i * walk.stride[1][axis], from.b + i * walk.stride[2][axis], from.y + i * walk.stride[0][axis]});
      }
    }
    problem.calls = std::move(calls);
  }
  return product_kernel(request, problem);
}

}  // namespace

void register_product_matmul_cuda(OpRegistry& registry) {
  registry.find("MatMul")->cuda = matmul;
  registry.find("arbalest.BatchMatMul")->cuda = matmul;
}

}  // namespace arbalest
